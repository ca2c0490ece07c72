//! trainprof
pub mod env;
