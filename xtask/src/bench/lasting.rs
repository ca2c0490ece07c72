//! Jobs that do the same work again and again, for as long as they are told to.

use std::ffi::OsString;

use anyhow::Result;
use clap::ValueEnum;

use super::{
    alloc,
    loads::{Bench, Load},
    tools::Tool,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Lasting {
    /// Load (a) of the overhead benchmark
    Jpeg,
    /// The load of the alloc benchmark
    Allocations,
}

impl Lasting {
    pub const ALL: [Self; 2] = [Self::Jpeg, Self::Allocations];

    pub fn name(self) -> &'static str {
        match self {
            Self::Jpeg => "jpeg",
            Self::Allocations => "allocations",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::Jpeg => Load::Jpeg.title(),
            Self::Allocations => alloc::TITLE,
        }
    }

    /// One piece of its work.
    pub fn unit(self) -> &'static str {
        match self {
            Self::Jpeg => Load::Jpeg.unit(),
            Self::Allocations => "picture",
        }
    }

    /// The command line without a tool; `pictures`: how many the one that allocates makes each time, before they are scaled.
    pub fn line(self, bench: &Bench, pictures: f64) -> Result<Vec<OsString>> {
        match self {
            Self::Jpeg => bench.command(Load::Jpeg, Tool::Bare),
            Self::Allocations => alloc::job(pictures * bench.scale),
        }
    }
}
