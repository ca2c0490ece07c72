//! trainprof tells, from outside, why a machine-learning training job is not faster.
//!
//! Data flows one way: kernel probes → `source` → `event` → [`record`] → `session` → `report`; a recording
//! is the stream of records, and replaying one runs the same code as watching live.
//!
//! `docs/ARCHITECTURE.md` in the repository tells how it works and why; `docs/JSON.md` describes the report.

// They panic where nothing can be written: `cmd::say` and `cmd::output::print` do not.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod analysis;
mod arch;
pub mod cmd;
mod demangle;
pub mod doctor;
pub mod env;
pub mod event;
pub mod gpu;
mod invoker;
pub mod kernel;
pub mod privilege;
pub mod record;
pub mod report;
pub mod session;
pub mod source;
pub mod time;
