//! What is particular to a processor: register layout and system-call numbers.
//!
//! One file per architecture; each has the same items, so that code elsewhere names none of them.
//! The probes have an object per architecture, built with `--cfg bpf_target_arch="…"`.

#[cfg(any(target_arch = "x86_64", bpf_target_arch = "x86_64"))]
mod x86_64;
#[cfg(any(target_arch = "x86_64", bpf_target_arch = "x86_64"))]
pub use x86_64::*;
