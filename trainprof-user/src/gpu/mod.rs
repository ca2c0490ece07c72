//! GPUs by what the driver's library NVML says. NVML is touched in `gpu/nvml.rs` alone.
//!
//! The library runs in a process of its own. A driver in trouble answers late, never, or by ending the process that
//! asked; a thread that sleeps inside it cannot even be killed, and would keep our process from ending. So nothing of
//! it happens in the collector, which listens to a line that never blocks.

mod ask;
mod decode;
mod nvml;
mod query;
pub mod used;
mod watch;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::watch::{Driver, Heard, LoadError};
use crate::{
    record::gpu::{GpuDeviceFact, GpuSampleFact},
    time::KtimeNs,
};

/// What `--gpu` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// The library that this host has, if it has one.
    #[default]
    Auto,
    /// Nothing of GPUs: neither the driver nor calls.
    Off,
    /// This library.
    Library(PathBuf),
}

impl std::str::FromStr for Choice {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "auto" => Self::Auto,
            "off" => Self::Off,
            path => Self::Library(path.into()),
        })
    }
}

/// What the process that asks the driver tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Answer {
    /// The library is loaded; the driver was not asked anything yet.
    Loaded,
    /// The library cannot be loaded.
    NotLoadable(String),
    /// Something is not to be had from the driver.
    Missing(String),
    /// The devices that there are. `used_by_job` is not its affair.
    Devices(Vec<GpuDeviceFact>),
    Samples(Vec<GpuSampleFact>),
    /// Everybody who has a context on a device.
    Processes {
        at: KtimeNs,
        device: u32,
        users: Vec<DeviceUser>,
    },
    /// Nothing new, but the driver answers.
    Alive,
    /// All that was asked for at the end of a watch has been told.
    AllTold,
    /// So many answers were dropped since the last one that arrived, because nobody took them.
    Dropped(u64),
}

/// A process that has a context on a device.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceUser {
    pub pid: u32,
    pub memory_bytes: Option<u64>,
    /// Share (0–1) of the time since it was last told.
    pub utilisation: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices() {
        let parse = |text: &str| text.parse::<Choice>().expect("never fails");
        assert_eq!(parse("auto"), Choice::Auto);
        assert_eq!(parse("off"), Choice::Off);
        assert_eq!(parse("/x/y.so"), Choice::Library("/x/y.so".into()));
    }
}
