//! The capabilities of trainprof itself: whether they suffice, and giving back those no longer needed.
//!
//! Whether a process is root says little: root in a container often has no CAP_BPF, and a program marked by
//! `setcap` has it without being root. So it is capabilities that count (`capabilities(7)`).

use std::io;
use std::path::{Path, PathBuf};

use caps::{CapSet, Capability, CapsHashSet};
use serde::{Deserialize, Serialize};

use crate::env::host::KernelVersion;
use crate::env::{EnvError, read_value};

/// What `setcap` must give to the program so that it runs without root.
pub const SETCAP_CURE: &str =
    "sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search+ep $(which trainprof)";

/// Inode of the initial user namespace (PROC_USER_INIT_INO in include/linux/proc_ns.h).
const INITIAL_USER_NAMESPACE: u64 = 0xEFFF_FFFD;

/// Why trainprof may not profile, or could not give its capabilities back.
#[derive(Debug, thiserror::Error)]
pub enum PrivilegeError {
    /// Capabilities that loading and attaching need are not there.
    #[error("not permitted to load probes: {} missing; {}", missing.join(" and "), missing_cure(*root))]
    Missing {
        /// Their names.
        missing: Vec<String>,
        /// Whether we are root all the same, which means a container or service that keeps them back.
        root: bool,
    },
    /// The capabilities are there, but only over a user namespace of their own, which the kernel does not accept
    /// for BPF (`capable()` asks for the initial one).
    #[error(
        "not permitted to load probes: this is root of a user namespace only (a rootless container?); \
         run trainprof on the host itself"
    )]
    UserNamespace,
    /// Our own capabilities could not be read.
    #[error("cannot tell which capabilities trainprof has")]
    Unknown(#[source] EnvError),
    /// The kernel refused to change a set of capabilities.
    #[error("cannot {operation}")]
    Change {
        /// What was tried.
        operation: &'static str,
        /// What the kernel answered.
        source: caps::errors::CapsError,
    },
    /// `PR_SET_NO_NEW_PRIVS` was refused.
    #[error("cannot set no_new_privs")]
    NoNewPrivileges(#[source] io::Error),
}

fn missing_cure(root: bool) -> String {
    if root {
        "start the container with --privileged, or with --cap-add BPF --cap-add PERFMON --cap-add SYS_PTRACE \
         --cap-add DAC_READ_SEARCH, and --pid=host"
            .to_owned()
    } else {
        format!("run it with sudo, or once: {SETCAP_CURE}")
    }
}

/// Who we are and what we may do.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Privileges {
    /// Effective user id.
    pub euid: u32,
    /// The effective capabilities of the calling thread, one bit each by the numbers of `linux/capability.h`.
    pub effective: u64,
    /// Whether we are in the initial user namespace; `None` where `/proc` does not tell.
    pub initial_user_namespace: Option<bool>,
}

impl Privileges {
    /// Reads those of the calling thread from `/proc/thread-self`.
    ///
    /// # Errors
    /// When `/proc` is not mounted or does not tell.
    pub fn read() -> Result<Privileges, EnvError> {
        let path = PathBuf::from("/proc/thread-self/status");
        let status = std::fs::read_to_string(&path).map_err(|source| EnvError::Read {
            path: path.clone(),
            source,
        })?;
        let (euid, effective) = decode_status(&status).ok_or(EnvError::Decode {
            path,
            what: "Uid and CapEff",
        })?;
        Ok(Privileges {
            euid,
            effective,
            initial_user_namespace: namespace_inode(Path::new("/proc/self/ns/user"))
                .map(|inode| inode == INITIAL_USER_NAMESPACE),
        })
    }

    /// Whether this capability is effective.
    pub fn has(&self, capability: Capability) -> bool {
        self.effective & capability.bitmask() != 0
    }

    /// Whether the kernel takes this capability for given: CAP_SYS_ADMIN stands in for CAP_BPF and CAP_PERFMON
    /// (`bpf_capable()` and `perfmon_capable()` in include/linux/capability.h).
    pub fn suffices_for(&self, capability: Capability) -> bool {
        let split_from_admin = matches!(capability, Capability::CAP_BPF | Capability::CAP_PERFMON);
        self.has(capability) || (split_from_admin && self.has(Capability::CAP_SYS_ADMIN))
    }

    /// Whether probes can be loaded and attached with these.
    ///
    /// # Errors
    /// [`PrivilegeError::Missing`] or [`PrivilegeError::UserNamespace`].
    pub fn check_can_profile(&self) -> Result<(), PrivilegeError> {
        let missing: Vec<String> = [Capability::CAP_BPF, Capability::CAP_PERFMON]
            .into_iter()
            .filter(|&capability| !self.suffices_for(capability))
            .map(|capability| capability.to_string())
            .collect();
        if !missing.is_empty() {
            return Err(PrivilegeError::Missing {
                missing,
                root: self.euid == 0,
            });
        }
        if self.initial_user_namespace == Some(false) {
            return Err(PrivilegeError::UserNamespace);
        }
        Ok(())
    }
}

/// Whether the calling thread may load and attach probes. Changes nothing.
///
/// # Errors
/// What is missing, with the cure.
pub fn check_can_profile() -> Result<(), PrivilegeError> {
    Privileges::read()
        .map_err(PrivilegeError::Unknown)?
        .check_can_profile()
}

/// (effective uid, effective capabilities) of the text of `/proc/PID/status` (`proc_pid_status(5)`).
fn decode_status(status: &str) -> Option<(u32, u64)> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name));
    let euid = field("Uid:")?
        .split_ascii_whitespace()
        .nth(1)?
        .parse()
        .ok()?;
    let effective = u64::from_str_radix(field("CapEff:")?.trim(), 16).ok()?;
    Some((euid, effective))
}

/// Inode of the initial pid namespace (PROC_PID_INIT_INO in include/linux/proc_ns.h).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Whether process ids here are those of the kernel, as the probes see them; `None` where /proc does not tell.
pub fn in_initial_pid_namespace() -> Option<bool> {
    namespace_inode(Path::new("/proc/self/ns/pid")).map(|inode| inode == INITIAL_PID_NAMESPACE)
}

/// The inode that a link such as `pid:[4026531836]` in `/proc/PID/ns` names (`namespaces(7)`).
fn namespace_inode(link: &Path) -> Option<u64> {
    decode_namespace(std::fs::read_link(link).ok()?.to_str()?)
}

fn decode_namespace(target: &str) -> Option<u64> {
    let (_, inode) = target.split_once(":[")?;
    inode.strip_suffix(']')?.parse().ok()
}

/// What trainprof still has to do once its probes are attached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Keep {
    /// Read `/proc` of other users' processes and their programs: CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
    pub read_processes: bool,
    /// Attach further probes, as windows of allocation probes need: CAP_PERFMON and CAP_BPF.
    pub attach: bool,
    /// Pass signals on to a command that runs as another user: CAP_KILL.
    pub signal: bool,
    /// Attach uprobes too: newer kernels (seen on 6.18) ask for CAP_SYS_ADMIN.
    pub attach_uprobes: bool,
    /// Switch the run-time statistics of BPF programs (`bpf_enable_stats` in kernel/bpf/syscall.c), or ask a GPU driver
    /// for counters that it may keep to administrators (NVIDIA, "Permission issue with performance counters"):
    /// CAP_SYS_ADMIN.
    pub administer: bool,
}

/// What [`drop_unneeded`] did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dropped {
    /// The capabilities that are left, by name, sorted.
    pub kept: Vec<String>,
    /// Whether the bounding set is bounded too. That needs CAP_SETPCAP, which a program marked by `setcap` does not
    /// have; `no_new_privs` makes it harmless there.
    pub bounding: bool,
    /// Other threads of this process: they keep what they had, so this is 0 where all is well.
    pub other_threads: u32,
}

/// Drops every capability of the calling thread that is not needed any more, from its effective, permitted,
/// inheritable, ambient and bounding sets, and sets `no_new_privs`, so that nothing it starts can get them back.
///
/// Call it once probes are attached, **from the only thread**: Linux keeps capabilities for each thread, and there is
/// no call that changes them for all (`capset(2)`). trainprof's runtime is single-threaded for that reason; libraries
/// that started threads of their own show in [`Dropped::other_threads`].
///
/// Before it: open every output file (root without CAP_DAC_OVERRIDE is subject to permissions as all users are) and
/// start the command of `run` (children inherit `no_new_privs` and the bounding set, and `sudo` would fail in them).
/// The user id does not change: what root owns can still be written.
///
/// CAP_BPF stays where the kernel needs it for looking into maps that are open: before 6.0, with
/// `kernel.unprivileged_bpf_disabled` set, every `bpf()` call wants it; since then only those that create
/// something (`__sys_bpf` in kernel/bpf/syscall.c).
///
/// # Errors
/// When the kernel refuses. Sets that were changed before that stay changed.
pub fn drop_unneeded(keep: Keep) -> Result<Dropped, PrivilegeError> {
    let change = |operation| move |source| PrivilegeError::Change { operation, source };
    let wanted = needed(
        keep,
        KernelVersion::running(),
        read_value("/proc/sys/kernel/unprivileged_bpf_disabled").as_deref(),
    );
    let permitted =
        caps::read(None, CapSet::Permitted).map_err(change("read the permitted capabilities"))?;
    let kept: CapsHashSet = wanted.intersection(&permitted).copied().collect();

    // The bounding set first: it takes CAP_SETPCAP, which goes with the rest.
    let bounding = caps::has_cap(None, CapSet::Effective, Capability::CAP_SETPCAP)
        .map_err(change("read the effective capabilities"))?;
    if bounding {
        for capability in caps::runtime::thread_all_supported().difference(&kept) {
            caps::drop(None, CapSet::Bounding, *capability)
                .map_err(change("bound the capabilities"))?;
        }
    }
    caps::clear(None, CapSet::Ambient).map_err(change("clear the ambient capabilities"))?;
    caps::clear(None, CapSet::Inheritable).map_err(change("clear the inheritable capabilities"))?;
    caps::set(None, CapSet::Effective, &kept).map_err(change("drop effective capabilities"))?;
    caps::set(None, CapSet::Permitted, &kept).map_err(change("drop permitted capabilities"))?;
    set_no_new_privileges().map_err(PrivilegeError::NoNewPrivileges)?;

    let mut names: Vec<String> = kept.iter().map(Capability::to_string).collect();
    names.sort();
    Ok(Dropped {
        kept: names,
        bounding,
        other_threads: count_threads().saturating_sub(1),
    })
}

/// The capabilities that the work left over takes. What is not known of the kernel counts against dropping.
fn needed(
    keep: Keep,
    kernel: Option<KernelVersion>,
    unprivileged_bpf_disabled: Option<&str>,
) -> CapsHashSet {
    let refined = kernel.is_some_and(|version| version >= KernelVersion { major: 6, minor: 0 });
    let maps_are_open_to_all = refined || unprivileged_bpf_disabled == Some("0");
    let mut needed = CapsHashSet::new();
    if keep.read_processes {
        needed.extend([Capability::CAP_SYS_PTRACE, Capability::CAP_DAC_READ_SEARCH]);
    }
    if keep.attach {
        needed.extend([Capability::CAP_PERFMON, Capability::CAP_BPF]);
    }
    if keep.attach_uprobes {
        needed.extend([
            Capability::CAP_PERFMON,
            Capability::CAP_BPF,
            Capability::CAP_SYS_ADMIN,
        ]);
    }
    if keep.administer {
        needed.insert(Capability::CAP_SYS_ADMIN);
    }
    if keep.signal {
        needed.insert(Capability::CAP_KILL);
    }
    if !maps_are_open_to_all {
        needed.insert(Capability::CAP_BPF);
    }
    needed
}

fn set_no_new_privileges() -> io::Result<()> {
    let (on, unused): (libc::c_ulong, libc::c_ulong) = (1, 0);
    // SAFETY: this option reads its arguments as numbers and touches no memory of ours (PR_SET_NO_NEW_PRIVS(2const)).
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, on, unused, unused, unused) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

fn count_threads() -> u32 {
    std::fs::read_dir("/proc/self/task").map_or(1, |tasks| tasks.flatten().count() as u32)
}

#[cfg(test)]
mod tests;
