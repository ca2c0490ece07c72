//! trainprof

pub mod record;
