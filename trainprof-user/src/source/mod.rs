//! Where records come from: the live kernel. The only part with a clock.

mod convert;
mod live;
mod memo;
pub mod own;
pub mod scan;

pub use live::{Live, SourceError, Watch};
