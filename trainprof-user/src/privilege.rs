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
mod tests {
    use super::*;
    use crate::doctor::bpf;
    use std::fs::{self, File, OpenOptions};
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::thread;

    use Capability::*;

    fn mask(capabilities: &[Capability]) -> u64 {
        capabilities.iter().map(Capability::bitmask).sum()
    }

    fn privileges(euid: u32, capabilities: &[Capability], initial: Option<bool>) -> Privileges {
        Privileges {
            euid,
            effective: mask(capabilities),
            initial_user_namespace: initial,
        }
    }

    #[test]
    fn capabilities_count_and_not_the_user() {
        let yes = [
            privileges(0, &[CAP_SYS_ADMIN], Some(true)),
            privileges(1000, &[CAP_BPF, CAP_PERFMON], Some(true)),
            privileges(1000, &[CAP_BPF, CAP_PERFMON], None),
        ];
        for privileges in yes {
            assert!(privileges.check_can_profile().is_ok(), "{privileges:?}");
        }
        let no: [(Privileges, &[&str]); 5] = [
            (
                privileges(1000, &[], Some(true)),
                &["CAP_BPF and CAP_PERFMON", "sudo", "setcap"],
            ),
            (
                privileges(1000, &[CAP_BPF], Some(true)),
                &["CAP_PERFMON missing", "setcap"],
            ),
            (
                privileges(1000, &[CAP_PERFMON], Some(true)),
                &["CAP_BPF missing", "setcap"],
            ),
            (
                privileges(0, &[CAP_CHOWN], Some(true)),
                &["CAP_BPF and CAP_PERFMON", "--cap-add BPF"],
            ),
            (
                privileges(0, &[CAP_SYS_ADMIN], Some(false)),
                &["user namespace", "on the host"],
            ),
        ];
        for (privileges, words) in no {
            let message = privileges
                .check_can_profile()
                .expect_err("too little")
                .to_string();
            for word in words {
                assert!(message.contains(word), "{message} lacks {word}");
            }
        }
    }

    #[test]
    fn status_and_namespace_links_are_decoded() {
        let status = "Name:\tx\nUid:\t1000\t0\t1000\t1000\nCapPrm:\t1\nCapEff:\t000001fffeffffff\n";
        assert_eq!(decode_status(status), Some((0, 0x1ff_feff_ffff)));
        for bad in ["", "Uid:\t1\n", "Uid:\t1\t1\nCapEff:\tx\n", "CapEff:\t1\n"] {
            assert_eq!(decode_status(bad), None, "{bad:?}");
        }
        for (target, inode) in [
            ("pid:[4026531836]", Some(4_026_531_836)),
            ("pid:4026531836", None),
            ("", None),
        ] {
            assert_eq!(decode_namespace(target), inode, "{target}");
        }
    }

    #[test]
    fn what_is_kept_follows_from_the_work_and_the_kernel() {
        let kernel = |major, minor| Some(KernelVersion { major, minor });
        let reading = Keep {
            read_processes: true,
            ..Keep::default()
        };
        let all = Keep {
            read_processes: true,
            attach: true,
            attach_uprobes: false,
            administer: false,
            signal: true,
        };
        type Row<'a> = (
            Keep,
            Option<KernelVersion>,
            Option<&'a str>,
            &'a [Capability],
        );
        let uprobes = Keep {
            attach_uprobes: true,
            ..Keep::default()
        };
        let administering = Keep {
            administer: true,
            ..Keep::default()
        };
        let cases: [Row<'_>; 9] = [
            (administering, kernel(6, 1), Some("2"), &[CAP_SYS_ADMIN]),
            (
                uprobes,
                kernel(6, 18),
                Some("2"),
                &[CAP_BPF, CAP_PERFMON, CAP_SYS_ADMIN],
            ),
            (Keep::default(), kernel(6, 1), Some("2"), &[]),
            (Keep::default(), kernel(5, 19), Some("0"), &[]),
            (Keep::default(), kernel(5, 19), Some("2"), &[CAP_BPF]),
            (Keep::default(), kernel(5, 19), None, &[CAP_BPF]),
            (Keep::default(), None, Some("1"), &[CAP_BPF]),
            (
                reading,
                kernel(6, 18),
                Some("2"),
                &[CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH],
            ),
            (
                all,
                kernel(6, 18),
                Some("2"),
                &[
                    CAP_SYS_PTRACE,
                    CAP_DAC_READ_SEARCH,
                    CAP_BPF,
                    CAP_PERFMON,
                    CAP_KILL,
                ],
            ),
        ];
        for (keep, kernel, sysctl, expected) in cases {
            let expected: CapsHashSet = expected.iter().copied().collect();
            assert_eq!(
                needed(keep, kernel, sysctl),
                expected,
                "{keep:?} {kernel:?} {sysctl:?}"
            );
        }
    }

    /// Capabilities belong to threads, so a test may drop them on a thread of its own.
    fn on_a_root_thread(test: impl FnOnce() + Send + 'static) {
        let privileges = Privileges::read().expect("procfs");
        let needed = [
            CAP_SETPCAP,
            CAP_CHOWN,
            CAP_DAC_OVERRIDE,
            CAP_SYS_PTRACE,
            CAP_BPF,
        ];
        if !needed
            .into_iter()
            .all(|capability| privileges.suffices_for(capability))
        {
            eprintln!("skipped: dropping capabilities can only be tested as root");
            return;
        }
        thread::spawn(test).join().expect("the test passes");
    }

    fn sets_of(status: &str) -> Vec<u64> {
        ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"]
            .map(|name| {
                let line = status
                    .lines()
                    .find_map(|line| line.strip_prefix(name))
                    .expect(name);
                u64::from_str_radix(line.trim(), 16).expect("a mask")
            })
            .to_vec()
    }

    /// A file of another user that nobody else may open.
    fn private_file_of_another_user(dir: &Path) -> PathBuf {
        let path = dir.join("private");
        fs::write(&path, "x").expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its owner's");
        chown(&path, Some(65534), Some(65534)).expect("another's");
        path
    }

    struct ProcessOfAnotherUser(Child);

    impl ProcessOfAnotherUser {
        /// A `cat` that waits for its input, which ends with the test.
        fn start() -> ProcessOfAnotherUser {
            let mut command = Command::new("cat");
            command.uid(65534).gid(65534).stdin(Stdio::piped());
            ProcessOfAnotherUser(command.spawn().expect("cat(1) exists"))
        }

        fn exe(&self) -> io::Result<PathBuf> {
            fs::read_link(format!("/proc/{}/exe", self.0.id()))
        }
    }

    impl Drop for ProcessOfAnotherUser {
        fn drop(&mut self) {
            drop(self.0.stdin.take());
            self.0.wait().expect("ends with its input");
        }
    }

    #[test]
    fn after_the_drop_only_the_kept_ones_are_left() {
        on_a_root_thread(|| {
            let dir = tempfile::tempdir().expect("a folder");
            let private = private_file_of_another_user(dir.path());
            let other = ProcessOfAnotherUser::start();
            assert!(OpenOptions::new().write(true).open(&private).is_ok());
            let dropped = drop_unneeded(Keep {
                read_processes: true,
                ..Keep::default()
            })
            .expect("drops");
            assert!(
                dropped.bounding && dropped.other_threads >= 1,
                "{dropped:?}"
            );

            let mut kept = mask(&[CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH]);
            if dropped.kept.contains(&"CAP_BPF".to_owned()) {
                kept |= CAP_BPF.bitmask();
            }
            let status = fs::read_to_string("/proc/thread-self/status").expect("our own");
            assert_eq!(sets_of(&status), [0, kept, kept, kept, 0]);
            assert!(status.contains("NoNewPrivs:\t1"));

            assert!(
                File::open(&private).is_ok(),
                "CAP_DAC_READ_SEARCH reads all"
            );
            let error = OpenOptions::new()
                .write(true)
                .open(&private)
                .expect_err("not permitted");
            assert_eq!(error.raw_os_error(), Some(libc::EACCES));
            assert!(
                other.exe().is_ok(),
                "CAP_SYS_PTRACE looks into other users' processes"
            );

            // A program of root would get all capabilities back without no_new_privs and the bounding set.
            let child = Command::new("cat")
                .arg("/proc/self/status")
                .output()
                .expect("cat(1) exists");
            let child = String::from_utf8(child.stdout).expect("text");
            assert_eq!(sets_of(&child)[2] & !kept, 0, "{child}");
        });
    }

    #[test]
    fn nothing_is_left_when_nothing_is_to_be_done() {
        on_a_root_thread(|| {
            let dir = tempfile::tempdir().expect("a folder");
            let private = private_file_of_another_user(dir.path());
            // A map that was made before stays readable, whatever kernel.unprivileged_bpf_disabled says.
            let map = bpf::create_array_map().expect("root makes maps");
            let other = ProcessOfAnotherUser::start();
            assert!(other.exe().is_ok());
            drop_unneeded(Keep::default()).expect("drops");
            assert!(other.exe().is_err());
            let error = File::open(&private).expect_err("not permitted");
            assert_eq!(error.raw_os_error(), Some(libc::EACCES));
            assert_eq!(bpf::look_up(&map).expect("open maps can be read"), 0);
            if read_value("/proc/sys/kernel/unprivileged_bpf_disabled").as_deref() != Some("0") {
                let error = bpf::create_array_map().expect_err("not permitted");
                assert_eq!(error.raw_os_error(), Some(libc::EPERM));
            }
            let again = drop_unneeded(Keep::default()).expect("a second time changes nothing");
            assert!(!again.bounding && !again.kept.contains(&"CAP_SYS_ADMIN".to_owned()));
        });
    }

    #[test]
    fn only_what_was_permitted_is_kept() {
        on_a_root_thread(|| {
            drop_unneeded(Keep::default()).expect("drops");
            let dropped = drop_unneeded(Keep {
                read_processes: true,
                attach: true,
                attach_uprobes: true,
                administer: true,
                signal: true,
            })
            .expect("asks for nothing that is gone");
            assert!(
                !dropped.kept.contains(&"CAP_PERFMON".to_owned()),
                "{dropped:?}"
            );
        });
    }
}
