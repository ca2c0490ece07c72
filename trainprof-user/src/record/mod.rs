//! The recording: what a watch saw, as an ordered stream of facts in one file.

pub mod alloc;
pub mod fact;
pub mod format;
pub mod gpu;
pub mod pressure;
pub mod python;
pub mod reader;
pub mod stack;
pub mod touch;
pub mod writer;

pub use fact::Record;
pub use reader::{Completeness, Corruption, Incomplete, ReadError, Reader, Records};
pub use writer::{Summary, WriteError, Writer};
