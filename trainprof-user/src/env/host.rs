//! The machine: kernel, processors, memory, clock source, lockdown and what it runs under.

use std::{collections::BTreeSet, path::Path};

use serde::{Deserialize, Serialize};

use super::{EnvError, read_text, read_value};

/// Processors that a list may name: more than any kernel manages.
const MOST_CPUS: u32 = 65_536;

/// What is known of the machine, read once at the start of a recording.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct HostFacts {
    /// As `uname -r` prints it (`/proc/sys/kernel/osrelease`).
    pub kernel_release: String,
    /// The architecture that trainprof was built for, by Rust's name (`x86_64`, `aarch64`).
    pub architecture: String,
    /// `/proc/sys/kernel/hostname`; in a container, the container's own.
    pub hostname: Option<String>,
    /// `model name` of `/proc/cpuinfo`; Arm kernels do not print one.
    pub cpu_model: Option<String>,
    /// Logical processors that are online, whatever our own affinity (`/sys/devices/system/cpu/online`).
    pub cpus_online: u32,
    /// `MemTotal` of `/proc/meminfo`, in bytes: memory that the kernel manages, whatever a cgroup allows.
    pub memory_bytes: u64,
    /// `/proc/sys/kernel/random/boot_id`: tells whether kernel time stamps of two recordings compare.
    pub boot_id: Option<String>,
    /// The version of trainprof that read these facts.
    pub trainprof_version: String,
    /// The kernel's clock source (`tsc`, `kvm-clock`, `hpet`…): reading the time is a system call's work with
    /// a slow one.
    pub clocksource: Option<String>,
    /// Kernel lockdown: `none`, `integrity` or `confidentiality` (`kernel_lockdown(7)`); `None` where
    /// securityfs is not mounted or the kernel has no lockdown.
    pub lockdown: Option<String>,
    /// The hypervisor (`kvm`, `vmware`, `hyper-v`, `xen`, `amazon-ec2`, `google`, or `unknown` for one that does
    /// not say its name), `none` on bare metal, `None` where the machine does not tell.
    pub virtualisation: Option<String>,
}

impl HostFacts {
    /// Reads the facts from procfs and sysfs.
    ///
    /// # Errors
    /// When `/proc` gives no kernel release, no memory size or no count of processors: it is then not the
    /// procfs of Linux, and nothing else would work.
    pub fn read() -> Result<HostFacts, EnvError> {
        HostFacts::read_from(Path::new("/proc"), Path::new("/sys"))
    }

    fn read_from(proc: &Path, sys: &Path) -> Result<HostFacts, EnvError> {
        let release = proc.join("sys/kernel/osrelease");
        let kernel_release = read_text(&release, 4096)?.trim().to_owned();
        let meminfo = proc.join("meminfo");
        let memory_bytes =
            decode_memory(&read_text(&meminfo, 64 << 10)?).ok_or(EnvError::Decode {
                path: meminfo,
                what: "MemTotal",
            })?;
        let stat = proc.join("stat");
        let cpus_online = read_value(sys.join("devices/system/cpu/online"))
            .and_then(|list| cpu_list(&list))
            .map(|cpus| cpus.len() as u32)
            .map_or_else(|| Ok(count_cpus(&read_text(&stat, 1 << 20)?)), Ok)?;
        if cpus_online == 0 {
            return Err(EnvError::Decode {
                path: stat,
                what: "processors",
            });
        }
        let cpuinfo = read_text(&proc.join("cpuinfo"), 64 << 10).unwrap_or_default();
        let dmi = |file| read_value(sys.join("class/dmi/id").join(file));
        Ok(HostFacts {
            kernel_release,
            architecture: std::env::consts::ARCH.to_owned(),
            hostname: read_value(proc.join("sys/kernel/hostname")),
            cpu_model: cpuinfo_field(&cpuinfo, "model name").map(str::to_owned),
            cpus_online,
            memory_bytes,
            boot_id: read_value(proc.join("sys/kernel/random/boot_id")),
            trainprof_version: env!("CARGO_PKG_VERSION").to_owned(),
            clocksource: read_value(
                sys.join("devices/system/clocksource/clocksource0/current_clocksource"),
            ),
            lockdown: read_value(sys.join("kernel/security/lockdown"))
                .and_then(|text| decode_selected(&text)),
            virtualisation: decode_virtualisation(&Platform {
                vendor: dmi("sys_vendor").as_deref(),
                product: dmi("product_name").as_deref(),
                hypervisor_type: read_value(sys.join("hypervisor/type")).as_deref(),
                cpu_flags: cpuinfo_field(&cpuinfo, "flags"),
            }),
        })
    }
}

/// The comparable part of a kernel release.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// The 6 of 6.12.38.
    pub major: u32,
    /// The 12 of 6.12.38.
    pub minor: u32,
}

impl KernelVersion {
    /// Takes the first two numbers of a release such as `6.1.0-37-cloud-amd64`, `6.18.44-fc-v657` or `6.12-rc1`.
    pub fn parse(release: &str) -> Option<KernelVersion> {
        let mut numbers = release.split(|c: char| !c.is_ascii_digit());
        let mut next = || numbers.next()?.parse().ok();
        Some(KernelVersion {
            major: next()?,
            minor: next()?,
        })
    }

    /// The version of the running kernel; `None` where `/proc` does not tell.
    pub fn running() -> Option<KernelVersion> {
        KernelVersion::parse(&read_value("/proc/sys/kernel/osrelease")?)
    }
}

impl std::fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

fn decode_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The processors that a list such as `0-3,8,10-11` names (`cpuset(7)`, "List format"); `None` for what is none, or
/// names more than there can be.
pub(crate) fn cpu_list(list: &str) -> Option<BTreeSet<u32>> {
    let mut cpus = BTreeSet::new();
    let mut named = 0;
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last && last < MOST_CPUS).then_some(())?;
        named += last - first + 1;
        (named <= MOST_CPUS).then(|| cpus.extend(first..=last))?;
    }
    Some(cpus)
}

/// Counts the `cpuN` lines of `/proc/stat`, which lists the processors that are online.
fn count_cpus(stat: &str) -> u32 {
    let numbered = |line: &&str| {
        line.strip_prefix("cpu")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    stat.lines().filter(numbered).count() as u32
}

fn cpuinfo_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name && !value.trim().is_empty()).then(|| value.trim())
    })
}

/// The choice in brackets of a list such as `none [integrity] confidentiality`.
pub(crate) fn decode_selected(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    let (selected, _) = rest.split_once(']')?;
    super::non_empty(selected)
}

/// What the firmware, the kernel and the processor say of the machine they run on.
struct Platform<'a> {
    vendor: Option<&'a str>,
    product: Option<&'a str>,
    hypervisor_type: Option<&'a str>,
    cpu_flags: Option<&'a str>,
}

/// The firmware's vendor and product strings name the hypervisor; on x86 the flag `hypervisor` (CPUID leaf 1,
/// ECX bit 31, kept clear by processors themselves) says whether there is one at all.
fn decode_virtualisation(platform: &Platform<'_>) -> Option<String> {
    const NAMES: [(&str, &str); 11] = [
        ("amazon ec2", "amazon-ec2"),
        ("google", "google"),
        ("microsoft corporation virtual", "hyper-v"),
        ("vmware", "vmware"),
        ("qemu", "kvm"),
        ("kvm", "kvm"),
        ("xen", "xen"),
        ("virtualbox", "virtualbox"),
        ("alibaba cloud", "alibaba"),
        ("openstack", "kvm"),
        ("firecracker", "firecracker"),
    ];
    let flagged = platform.cpu_flags.map(|flags| {
        flags
            .split_ascii_whitespace()
            .any(|flag| flag == "hypervisor")
    });
    // The bare-metal machines of a cloud carry the cloud's name as their vendor: the processor decides.
    if flagged == Some(false) {
        return Some("none".to_owned());
    }
    let firmware = format!(
        "{} {}",
        platform.vendor.unwrap_or_default(),
        platform.product.unwrap_or_default()
    )
    .to_ascii_lowercase();
    NAMES
        .iter()
        .find(|(sign, _)| firmware.contains(sign))
        .map(|&(_, name)| name.to_owned())
        .or_else(|| platform.hypervisor_type.map(str::to_owned))
        .or_else(|| (flagged == Some(true)).then(|| "unknown".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_compare_by_their_first_two_numbers() {
        let cases = [
            ("6.18.44-fc-v657", Some((6, 18))),
            ("6.1.0-37-cloud-amd64", Some((6, 1))),
            ("5.14.0-427.el9.x86_64", Some((5, 14))),
            ("6.12-rc1", Some((6, 12))),
            ("6", None),
            ("", None),
            ("next-20260101", None),
        ];
        for (release, expected) in cases {
            let expected = expected.map(|(major, minor)| KernelVersion { major, minor });
            assert_eq!(KernelVersion::parse(release), expected, "{release}");
        }
        assert!(
            KernelVersion { major: 6, minor: 1 }
                < KernelVersion {
                    major: 6,
                    minor: 12
                }
        );
    }

    #[test]
    fn lists_of_processors_are_counted() {
        let cases = [
            ("0", Some(1)),
            ("0-1\n", Some(2)),
            ("0-3,8,10-11", Some(7)),
            ("", None),
            ("3-1", None),
            ("0-4294967295", None),
            ("a-b", None),
            ("0,0-1,1", Some(2)),
        ];
        for (list, expected) in cases {
            assert_eq!(cpu_list(list).map(|cpus| cpus.len()), expected, "{list}");
        }
        assert_eq!(count_cpus("cpu  1 2\ncpu0 1 2\ncpu1 1 2\nintr 5\n"), 2);
    }

    #[test]
    fn memory_is_in_bytes() {
        let cases = [
            (
                "MemTotal:       24668984 kB\nMemFree: 1 kB\n",
                Some(24_668_984 * 1024),
            ),
            ("MemFree: 1 kB\n", None),
            ("MemTotal: 18446744073709551615 kB\n", None),
            ("MemTotal: x kB\n", None),
        ];
        for (text, expected) in cases {
            assert_eq!(decode_memory(text), expected, "{text}");
        }
    }

    #[test]
    fn the_selected_word_is_in_brackets() {
        let cases = [
            ("[none] integrity confidentiality", Some("none")),
            ("none [integrity] confidentiality", Some("integrity")),
            ("none", None),
            ("[]", None),
        ];
        for (text, expected) in cases {
            assert_eq!(decode_selected(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn hypervisors_are_named() {
        // vendor, product, /sys/hypervisor/type, flags
        type Row<'a> = [Option<&'a str>; 4];
        let cases: [(Row<'_>, Option<&str>); 7] = [
            (
                [
                    Some("Amazon EC2"),
                    Some("p4d.24xlarge"),
                    None,
                    Some("fpu hypervisor sse"),
                ],
                Some("amazon-ec2"),
            ),
            (
                [Some("Amazon EC2"), Some("p5.metal"), None, Some("fpu sse")],
                Some("none"),
            ),
            (
                [
                    Some("QEMU"),
                    Some("Standard PC (Q35 + ICH9, 2009)"),
                    None,
                    Some("hypervisor"),
                ],
                Some("kvm"),
            ),
            ([None, None, Some("xen"), Some("hypervisor")], Some("xen")),
            ([None, None, None, Some("fpu hypervisor")], Some("unknown")),
            (
                [Some("Dell Inc."), Some("XE9680"), None, Some("fpu")],
                Some("none"),
            ),
            ([None, None, None, None], None),
        ];
        for ([vendor, product, hypervisor_type, cpu_flags], expected) in cases {
            let platform = Platform {
                vendor,
                product,
                hypervisor_type,
                cpu_flags,
            };
            assert_eq!(
                decode_virtualisation(&platform).as_deref(),
                expected,
                "{vendor:?} {product:?}"
            );
        }
    }

    #[test]
    fn this_host_can_be_read_and_written_to_a_recording() {
        let facts = HostFacts::read().expect("this host has a procfs");
        assert!(facts.cpus_online > 0 && facts.memory_bytes > 1 << 20);
        assert!(KernelVersion::parse(&facts.kernel_release).is_some());
        let bytes = postcard::to_stdvec(&facts).expect("encodes");
        assert_eq!(
            postcard::from_bytes::<HostFacts>(&bytes).expect("decodes"),
            facts
        );
    }

    #[test]
    fn a_host_without_procfs_is_an_error_that_names_the_file() {
        let empty = tempfile::tempdir().expect("a folder");
        let error = HostFacts::read_from(empty.path(), empty.path()).expect_err("nothing there");
        assert!(
            error.to_string().contains("sys/kernel/osrelease"),
            "{error}"
        );
        assert!(error.is_gone());
    }
}
