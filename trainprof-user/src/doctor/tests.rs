use caps::Capability;

use super::*;
use crate::privilege::Privileges;

fn good() -> DoctorFacts {
    DoctorFacts {
        kernel_release: Some("6.12.38".into()),
        btf_bytes: Some(6_123_456),
        lockdown: Some("integrity".into()),
        privileges: Some(Privileges {
            euid: 0,
            effective: u64::MAX,
            initial_user_namespace: Some(true),
        }),
        bpf_call: BpfCall::Works,
        seccomp_mode: Some(0),
        tracefs: None,
        perf_call: PerfCall::Works,
        perf_event_paranoid: Some(2),
        unprivileged_bpf_disabled: Some(2),
        bpf_jit_enable: Some(1),
        ptrace_scope: Some(1),
        pressure: true,
        cgroup_v1: false,
        cgroup_v2: true,
        nvidia_device: true,
        nvml_library: Some("/usr/lib/libnvidia-ml.so.1".into()),
        initial_pid_namespace: Some(true),
    }
}

fn diagnose(facts: &DoctorFacts) -> Diagnosis {
    Diagnosis {
        host: None,
        checks: checks(facts),
        extra: Vec::new(),
    }
}

#[test]
fn a_good_host_passes_every_check() {
    let diagnosis = diagnose(&good());
    for check in diagnosis.checks() {
        assert_eq!(
            (check.status, &check.cure),
            (Status::Ok, &None),
            "{check:?}"
        );
    }
    assert_eq!(diagnosis.exit_status(), 0);
}

fn holding(euid: u32, capabilities: &[Capability]) -> Option<Privileges> {
    Some(Privileges {
        euid,
        effective: capabilities.iter().map(Capability::bitmask).sum(),
        initial_user_namespace: Some(true),
    })
}

#[test]
fn each_fact_changes_its_own_check() {
    use Capability::*;
    use Status::{Missing, Ok, Warning};
    type Change = fn(&mut DoctorFacts);
    let all_four = [CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE, CAP_DAC_READ_SEARCH];
    assert!(
        holding(1000, &all_four).is_some_and(|privileges| privileges.check_can_profile().is_ok())
    );
    // what changes, the check, its status, a word of what is found or of the cure
    let cases: Vec<(Change, &str, Status, &str)> = vec![
        (
            |f| f.kernel_release = Some("5.15.0-100-generic".into()),
            "kernel",
            Missing,
            "from 5.18 on",
        ),
        (
            |f| f.kernel_release = Some("5.18.0".into()),
            "kernel",
            Ok,
            "5.18.0",
        ),
        (
            |f| f.kernel_release = Some("weird".into()),
            "kernel",
            Warning,
            "no version",
        ),
        (|f| f.kernel_release = None, "kernel", Warning, "/proc"),
        (
            |f| f.btf_bytes = None,
            "kernel BTF",
            Missing,
            "CONFIG_DEBUG_INFO_BTF",
        ),
        (
            |f| f.lockdown = Some("confidentiality".into()),
            "kernel lockdown",
            Missing,
            "integrity",
        ),
        (|f| f.lockdown = None, "kernel lockdown", Ok, "not shown"),
        (
            |f| f.privileges = holding(1000, &[]),
            "CAP_BPF",
            Missing,
            "setcap",
        ),
        (
            |f| f.privileges = holding(1000, &[]),
            "CAP_SYS_PTRACE",
            Warning,
            "setcap",
        ),
        (
            |f| f.privileges = holding(1000, &[]),
            "CAP_SYS_RESOURCE",
            Ok,
            "no",
        ),
        (
            |f| f.privileges = holding(0, &[CAP_CHOWN]),
            "CAP_PERFMON",
            Missing,
            "--cap-add PERFMON",
        ),
        (
            |f| f.privileges = holding(0, &[CAP_SYS_ADMIN]),
            "CAP_BPF",
            Ok,
            "by CAP_SYS_ADMIN",
        ),
        (
            |f| f.privileges = holding(1000, &[CAP_BPF, CAP_PERFMON]),
            "CAP_SYS_ADMIN",
            Warning,
            "sudo",
        ),
        (|f| f.privileges = None, "capabilities", Warning, "unknown"),
        (
            |f| {
                f.privileges
                    .iter_mut()
                    .for_each(|p| p.initial_user_namespace = Some(false))
            },
            "user namespace",
            Missing,
            "rootless",
        ),
        (
            |f| f.bpf_call = BpfCall::NotBuiltIn,
            "bpf()",
            Missing,
            "CONFIG_BPF_SYSCALL",
        ),
        (
            |f| {
                f.bpf_call = BpfCall::Blocked(libc::EPERM);
                f.seccomp_mode = Some(2);
            },
            "bpf()",
            Missing,
            "seccomp",
        ),
        (
            |f| f.bpf_call = BpfCall::NoMaps(libc::EACCES),
            "bpf()",
            Missing,
            "security module",
        ),
        (
            |f| {
                f.bpf_call = BpfCall::NoMaps(libc::EPERM);
                f.privileges = holding(1000, &[]);
            },
            "bpf()",
            Missing,
            "CAP_BPF, as above",
        ),
        (
            |f| f.bpf_jit_enable = Some(0),
            "BPF JIT",
            Warning,
            "bpf_jit_enable=1",
        ),
        (|f| f.bpf_jit_enable = None, "BPF JIT", Ok, "not shown"),
        (
            |f| f.unprivileged_bpf_disabled = Some(0),
            "unprivileged BPF",
            Ok,
            "open",
        ),
        (
            |f| f.perf_event_paranoid = Some(4),
            "perf_event_paranoid",
            Ok,
            "4",
        ),
        (
            |f| {
                f.perf_event_paranoid = Some(4);
                f.privileges = holding(1000, &[CAP_BPF, CAP_PERFMON]);
            },
            "perf_event_paranoid",
            Warning,
            "perf_event_paranoid=2",
        ),
        (
            |f| f.perf_event_paranoid = None,
            "perf_event_paranoid",
            Warning,
            "CONFIG_PERF_EVENTS",
        ),
        (
            |f| f.perf_call = PerfCall::Refused(libc::EACCES),
            "perf_event_open()",
            Warning,
            "perf_event_paranoid=2",
        ),
        (
            |f| {
                f.perf_call = PerfCall::Refused(libc::EPERM);
                f.seccomp_mode = Some(2);
            },
            "perf_event_open()",
            Warning,
            "seccomp profile",
        ),
        (
            |f| f.ptrace_scope = Some(3),
            "ptrace_scope",
            Warning,
            "reboot",
        ),
        (|f| f.ptrace_scope = None, "ptrace_scope", Ok, "no Yama"),
        (
            |f| {
                f.ptrace_scope = Some(1);
                f.privileges = holding(1000, &[CAP_BPF, CAP_PERFMON]);
            },
            "ptrace_scope",
            Warning,
            "CAP_SYS_PTRACE",
        ),
        (
            |f| f.initial_pid_namespace = Some(false),
            "pid namespace",
            Missing,
            "--pid=host",
        ),
        (
            |f| f.initial_pid_namespace = None,
            "pid namespace",
            Missing,
            "/proc",
        ),
        (|f| f.cgroup_v1 = true, "cgroups", Ok, "versions 1 and 2"),
        (|f| f.cgroup_v2 = false, "cgroups", Warning, "not mounted"),
        (|f| f.pressure = false, "pressure (PSI)", Warning, "psi=1"),
        (|f| f.tracefs = Some("/t".into()), "tracefs", Ok, "/t"),
        (
            |f| f.nvml_library = None,
            "NVIDIA GPU",
            Warning,
            "--gpu PATH",
        ),
        (
            |f| f.nvidia_device = false,
            "NVIDIA GPU",
            Warning,
            "no device",
        ),
        (
            |f| {
                f.nvidia_device = false;
                f.nvml_library = None;
            },
            "NVIDIA GPU",
            Ok,
            "none",
        ),
    ];
    for (change, name, status, word) in cases {
        let mut facts = good();
        change(&mut facts);
        let diagnosis = diagnose(&facts);
        let check = diagnosis
            .checks()
            .find(|check| check.name == name)
            .unwrap_or_else(|| panic!("no check {name}"));
        assert_eq!(check.status, status, "{check:?}");
        let said = format!(
            "{} {}",
            check.found,
            check.cure.as_deref().unwrap_or_default()
        );
        assert!(said.contains(word), "{check:?} lacks {word}");
        assert_eq!(check.status == Ok, check.cure.is_none(), "{check:?}");
        if status == Missing {
            assert_eq!(diagnosis.exit_status(), EXIT_NOT_SUPPORTED);
        }
    }
}

#[test]
fn a_check_of_another_module_counts() {
    let mut diagnosis = diagnose(&good());
    diagnosis.extra.push(
        Check::ok("kernel structures", "file.f_path is missing", "paths")
            .but(Status::Missing, "another kernel"),
    );
    assert_eq!(diagnosis.exit_status(), EXIT_NOT_SUPPORTED);
    let json: serde_json::Value =
        serde_json::from_str(&diagnosis.to_json().expect("plain data")).expect("JSON");
    assert_eq!(json["schema"], "trainprof.doctor/1");
    assert_eq!(json["ready"], false);
    let last = json["checks"]
        .as_array()
        .and_then(|checks| checks.last())
        .expect("a check");
    assert_eq!(last["status"], "missing");
    assert_eq!(last["cure"], "another kernel");
}

#[test]
fn text_keeps_to_its_width() {
    let mut facts = good();
    facts.privileges = holding(1000, &[]);
    facts.btf_bytes = None;
    facts.nvml_library = None;
    let text = diagnose(&facts).to_text(90);
    for line in text.lines() {
        let words = line.split_whitespace().count();
        assert!(line.chars().count() <= 90 || words == 1, "{line}");
    }
}

#[test]
fn this_host_is_diagnosed() {
    let diagnosis = Diagnosis::of_this_host(Vec::new());
    eprintln!("{}", diagnosis.to_text(90));
    assert!(diagnosis.host.is_some() && diagnosis.checks().count() > 10);
}
