//! Harness of the tests that need a real kernel: starts workloads that know what they did, watches them
//! with the built `trainprof`, and compares.
//!
//! Environment: `TRAINPROF_BIN` (the binary under test; else `target/release/trainprof`),
//! `TRAINPROF_WORKLOADS` (built workloads; else they are compiled into `target/workloads`),
//! `TRAINPROF_TEST_DIR` (where data files go), `TRAINPROF_VM=1` (inside a virtual machine: leave out what
//! needs PyTorch), `CI=true` (a lack is a failure, not a skip).

pub mod bpf;
pub mod bpf_map;
pub mod cgroup;
pub mod check;
pub mod env;
pub mod fixture;
pub mod gpu;
pub mod observe;
pub mod product;
pub mod replay;
pub mod report;
pub mod text;
pub mod workload;

pub use check::Checks;
pub use fixture::Data;
pub use observe::{Observed, observe, observe_in, observe_with};
pub use product::{Finished, Watch};
pub use report::Report;
pub use workload::Workload;
