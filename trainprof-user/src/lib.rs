//! trainprof
pub mod kernel;
pub mod time;
