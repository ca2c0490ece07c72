//! trainprof
pub mod doctor;
pub mod env;
pub mod privilege;
