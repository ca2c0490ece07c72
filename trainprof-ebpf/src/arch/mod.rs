//! Programs that only one processor has places for: one file per architecture. What has no program is in `trainprof_common::arch`.

#[cfg(bpf_target_arch = "x86_64")]
mod x86_64;
