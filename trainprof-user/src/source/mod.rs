//! Where records come from: the live kernel. The only part with a clock.

pub mod alloc;
mod apart;
mod blocked;
mod convert;
mod entries;
mod fault_turns;
mod foreign;
mod gpu;
mod huge;
mod jitter;
mod live;
mod mapped;
mod memo;
mod newcomers;
mod outsiders;
pub mod own;
mod pages;
mod places;
mod pressure;
mod python;
mod runs;
pub mod scan;
mod stacks;
mod throttle;
mod turns;

pub use live::{Live, SourceError, Watch};
