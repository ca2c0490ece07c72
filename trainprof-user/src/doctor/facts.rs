//! Reads what [`super::checks()`] judges.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::bpf::{self, BpfCall};
use super::perf::{self, PerfCall};
use crate::env::host::decode_selected;
use crate::env::mounts::MountTable;
use crate::env::read_value;
use crate::privilege::{Privileges, in_initial_pid_namespace};

/// Where libnvidia-ml.so.1 lies when the loader's cache does not say: distributions, NVIDIA's container toolkit, WSL.
const NVML_PATHS: [&str; 7] = [
    "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1",
    "/usr/lib64/libnvidia-ml.so.1",
    "/usr/lib/libnvidia-ml.so.1",
    "/usr/lib/wsl/lib/libnvidia-ml.so.1",
    "/run/opengl-driver/lib/libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
];

/// What a host shows of itself to someone who wants to profile on it; `None` is unknown or not there.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct DoctorFacts {
    /// `uname -r`.
    pub kernel_release: Option<String>,
    /// Size in bytes of `/sys/kernel/btf/vmlinux`, when it can be opened.
    pub btf_bytes: Option<u64>,
    /// `none`, `integrity` or `confidentiality`.
    pub lockdown: Option<String>,
    /// Our own capabilities.
    pub privileges: Option<Privileges>,
    /// What became of trying `bpf()`.
    pub bpf_call: BpfCall,
    /// Our seccomp mode: 0 none, 1 strict, 2 filter (`proc_pid_status(5)`).
    pub seccomp_mode: Option<u32>,
    /// Where tracefs is mounted.
    pub tracefs: Option<String>,
    /// What became of trying `perf_event_open()`.
    pub perf_call: PerfCall,
    /// `kernel.perf_event_paranoid`; `None` where the kernel has no perf events.
    pub perf_event_paranoid: Option<i32>,
    /// `kernel.unprivileged_bpf_disabled`.
    pub unprivileged_bpf_disabled: Option<u32>,
    /// `net.core.bpf_jit_enable`.
    pub bpf_jit_enable: Option<u32>,
    /// `kernel.yama.ptrace_scope`; `None` where Yama is not built in.
    pub ptrace_scope: Option<u32>,
    /// Whether `/proc/pressure` can be read.
    pub pressure: bool,
    /// Whether a version 1 cgroup hierarchy with a controller is mounted.
    pub cgroup_v1: bool,
    /// Whether the version 2 hierarchy is mounted.
    pub cgroup_v2: bool,
    /// Whether `/dev/nvidiactl` (or WSL's `/dev/dxg`) is there.
    pub nvidia_device: bool,
    /// The path of libnvidia-ml.so.1.
    pub nvml_library: Option<String>,
    /// Whether we are in the initial pid namespace.
    pub initial_pid_namespace: Option<bool>,
}

impl DoctorFacts {
    /// Reads the facts. Leaves nothing behind: at most one small BPF map is made and closed again.
    pub fn read() -> DoctorFacts {
        let mounts = MountTable::read(std::process::id()).unwrap_or_default();
        let has_mount = |wanted: &str| mounts.mounts().iter().find(|mount| mount.fs_type == wanted);
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
        DoctorFacts {
            kernel_release: sysctl("kernel/osrelease"),
            btf_bytes: btf_bytes(Path::new("/sys/kernel/btf/vmlinux")),
            lockdown: read_value("/sys/kernel/security/lockdown")
                .and_then(|text| decode_selected(&text)),
            privileges: Privileges::read().ok(),
            bpf_call: bpf::try_call(),
            seccomp_mode: decode_seccomp(&status),
            tracefs: has_mount("tracefs").map(|mount| mount.mount_point.clone()),
            perf_call: perf::try_call(),
            perf_event_paranoid: number("kernel/perf_event_paranoid"),
            unprivileged_bpf_disabled: number("kernel/unprivileged_bpf_disabled"),
            bpf_jit_enable: number("net/core/bpf_jit_enable"),
            ptrace_scope: number("kernel/yama/ptrace_scope"),
            pressure: read_value("/proc/pressure/cpu").is_some(),
            cgroup_v1: mounts
                .mounts()
                .iter()
                .any(|mount| mount.fs_type == "cgroup" && !mount.options.contains("name=")),
            cgroup_v2: has_mount("cgroup2").is_some(),
            nvidia_device: ["/dev/nvidiactl", "/dev/dxg"]
                .iter()
                .any(|path| Path::new(path).exists()),
            nvml_library: nvml_library(),
            initial_pid_namespace: in_initial_pid_namespace(),
        }
    }
}

fn sysctl(name: &str) -> Option<String> {
    read_value(Path::new("/proc/sys").join(name))
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    sysctl(name)?.parse().ok()
}

fn btf_bytes(path: &Path) -> Option<u64> {
    let file = std::fs::File::open(path).ok()?;
    file.metadata().ok().map(|metadata| metadata.len())
}

fn decode_seccomp(status: &str) -> Option<u32> {
    let mode = status
        .lines()
        .find_map(|line| line.strip_prefix("Seccomp:"))?;
    mode.trim().parse().ok()
}

/// NVIDIA's driver library, as `--gpu auto` finds it.
///
/// It is looked for as the loader would, without loading it: that would run its initialisers.
pub fn nvml_library() -> Option<String> {
    let cached = std::fs::read("/etc/ld.so.cache")
        .ok()
        .and_then(|cache| find_in_loader_cache(&cache, "libnvidia-ml.so.1"));
    cached
        .into_iter()
        .chain(NVML_PATHS.map(str::to_owned))
        .find(|path| Path::new(path).exists())
}

/// The first path of a library in `ld.so.cache`. The paths stand in the file as strings with a zero byte behind
/// (`struct cache_file_new` in glibc's sysdeps/generic/dl-cache.h), which is all that is made use of.
fn find_in_loader_cache(cache: &[u8], library: &str) -> Option<String> {
    cache
        .split(|&byte| byte == 0)
        .filter_map(|text| std::str::from_utf8(text).ok())
        .filter_map(|text| text.find('/').map(|start| &text[start..]))
        .find(|path| {
            path.strip_suffix(library)
                .is_some_and(|dir| dir.ends_with('/'))
        })
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_in_the_cache_of_the_loader() {
        let cache = b"glibc-ld.so.cache1.1\x01\x00\x00\xff\xfelibnvidia-ml.so.1\0/usr/lib/libnvidia-ml.so.1\0/lib/libm.so.6\0";
        let cases = [
            (
                &cache[..],
                "libnvidia-ml.so.1",
                Some("/usr/lib/libnvidia-ml.so.1"),
            ),
            (&cache[..], "libm.so.6", Some("/lib/libm.so.6")),
            (&cache[..], "ml.so.1", None),
            (&cache[..], "libcuda.so.1", None),
            (b"", "libm.so.6", None),
        ];
        for (cache, library, expected) in cases {
            assert_eq!(
                find_in_loader_cache(cache, library).as_deref(),
                expected,
                "{library}"
            );
        }
    }

    #[test]
    fn the_cache_of_this_host_names_a_library_that_exists() {
        match std::fs::read("/etc/ld.so.cache") {
            Ok(cache) => {
                let path =
                    find_in_loader_cache(&cache, "libc.so.6").expect("glibc is in its own cache");
                assert!(Path::new(&path).exists(), "{path}");
            }
            Err(error) => eprintln!("skipped: no /etc/ld.so.cache: {error}"),
        }
    }

    #[test]
    fn seccomp_modes_are_numbers() {
        for (status, expected) in [
            ("NoNewPrivs:\t0\nSeccomp:\t2\n", Some(2)),
            ("Seccomp:\tx\n", None),
            ("", None),
        ] {
            assert_eq!(decode_seccomp(status), expected, "{status:?}");
        }
    }

    #[test]
    fn this_host_can_be_read() {
        let facts = DoctorFacts::read();
        assert!(
            facts.kernel_release.is_some() && facts.privileges.is_some(),
            "{facts:?}"
        );
    }
}
