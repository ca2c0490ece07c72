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
