//! Facts of a host to checks: how each came out, what it is needed for, and its cure.

use caps::Capability;

use super::{BpfCall, Check, DoctorFacts, PerfCall, Status};
use crate::{
    env::host::KernelVersion,
    privilege::{Privileges, SETCAP_CURE},
};

/// The oldest kernel that can work: since 5.18 `sched_switch` hands its probes the state in which a thread left the
/// processor (fa2c3254d7cf, "sched/tracing: Don't re-read p->state when emitting sched_switch event"), and waits are
/// told from preemption by it.
const OLDEST_KERNEL: KernelVersion = KernelVersion {
    major: 5,
    minor: 18,
};
const TESTED_KERNELS: &str = "6.1, 6.12 and 6.18";

/// Judges the facts.
pub fn checks(facts: &DoctorFacts) -> Vec<Check> {
    let mut checks = vec![kernel(facts), btf(facts), lockdown(facts)];
    checks.extend(capabilities(facts));
    checks.extend([
        bpf_syscall(facts),
        bpf_jit(facts),
        unprivileged_bpf(facts),
        perf_events(facts),
        sampling(facts),
        ptrace(facts),
        pid_namespace(facts),
        cgroups(facts),
        pressure(facts),
        tracefs(facts),
        gpu(facts),
    ]);
    checks
}

fn kernel(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "probes on the scheduler that see the state in which a thread stops";
    let Some(release) = &facts.kernel_release else {
        return Check::ok("kernel", "unknown", NEEDED_FOR).but(Status::Warning, "mount /proc");
    };
    match KernelVersion::parse(release) {
        Some(version) if version >= OLDEST_KERNEL => Check::ok("kernel", release, NEEDED_FOR),
        Some(_) => Check::ok("kernel", release, NEEDED_FOR).but(
            Status::Missing,
            format!("a kernel from {OLDEST_KERNEL} on (tested: {TESTED_KERNELS})"),
        ),
        None => Check::ok(
            "kernel",
            format!("{release}, which is no version"),
            NEEDED_FOR,
        )
        .but(
            Status::Warning,
            format!("a kernel from {OLDEST_KERNEL} on (tested: {TESTED_KERNELS})"),
        ),
    }
}

fn btf(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "the layout of the running kernel's structures";
    match facts.btf_bytes {
        Some(bytes) => Check::ok(
            "kernel BTF",
            format!("/sys/kernel/btf/vmlinux, {:.1} MB", bytes as f64 / 1e6),
            NEEDED_FOR,
        ),
        None => Check::ok("kernel BTF", "no /sys/kernel/btf/vmlinux", NEEDED_FOR).but(
            Status::Missing,
            "a kernel built with CONFIG_DEBUG_INFO_BTF=y (those of Debian 11, Ubuntu 20.10, RHEL 8.2 and later are); \
             in a container, /sys of the host",
        ),
    }
}

fn lockdown(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "reading kernel memory from probes";
    let check = |found: &str| Check::ok("kernel lockdown", found, NEEDED_FOR);
    match facts.lockdown.as_deref() {
        // security/lockdown: LOCKDOWN_BPF_READ_KERNEL is a matter of confidentiality.
        Some("confidentiality") => check("confidentiality").but(
            Status::Missing,
            "boot without lockdown=confidentiality (integrity is enough for Secure Boot)",
        ),
        Some(mode) => check(mode),
        None => check("not shown by this host"),
    }
}

fn capabilities(facts: &DoctorFacts) -> Vec<Check> {
    /// (capability, how it comes out without it, what for)
    const WANTED: [(Capability, Status, &str); 6] = [
        (Capability::CAP_BPF, Status::Missing, "loading probes"),
        (
            Capability::CAP_PERFMON,
            Status::Missing,
            "probes on the kernel, uprobes and sampling",
        ),
        (
            Capability::CAP_SYS_PTRACE,
            Status::Warning,
            "looking into processes of other users",
        ),
        (
            Capability::CAP_DAC_READ_SEARCH,
            Status::Warning,
            "reading programs and libraries of other users and containers",
        ),
        // Probes count their own cost only while BPF_ENABLE_STATS holds; kernel/bpf/syscall.c asks for this.
        (
            Capability::CAP_SYS_ADMIN,
            Status::Warning,
            "measuring what the probes cost",
        ),
        // Memory of maps is charged to the cgroup since 5.11, so no limit must be raised.
        (
            Capability::CAP_SYS_RESOURCE,
            Status::Ok,
            "nothing on kernels from 5.11 on",
        ),
    ];
    let Some(privileges) = &facts.privileges else {
        let check = Check::ok("capabilities", "unknown", "loading probes");
        return vec![check.but(Status::Warning, "mount /proc")];
    };
    let mut checks = Vec::new();
    if privileges.initial_user_namespace == Some(false) {
        checks.push(
            Check::ok(
                "user namespace",
                "not the initial one",
                "capabilities that the kernel accepts",
            )
            .but(
                Status::Missing,
                "run trainprof on the host or in a container that is not rootless",
            ),
        );
    }
    checks.extend(WANTED.into_iter().map(|(capability, without, needed_for)| {
        let found = found_capability(privileges, capability);
        let check = Check::ok(&capability.to_string(), found.unwrap_or("no"), needed_for);
        match (found, without) {
            (Some(_), _) | (None, Status::Ok) => check,
            (None, without) => check.but(without, capability_cure(privileges, capability)),
        }
    }));
    checks
}

fn found_capability(privileges: &Privileges, capability: Capability) -> Option<&'static str> {
    if privileges.has(capability) {
        Some("yes")
    } else if privileges.suffices_for(capability) {
        Some("by CAP_SYS_ADMIN")
    } else {
        None
    }
}

fn capability_cure(privileges: &Privileges, capability: Capability) -> String {
    let name = capability.to_string();
    let short = name.strip_prefix("CAP_").unwrap_or(&name);
    match (privileges.euid, capability) {
        (0, _) => format!("start the container with --privileged or --cap-add {short}"),
        (_, Capability::CAP_SYS_ADMIN) => "sudo trainprof".to_owned(),
        _ => format!("sudo trainprof, or once: {SETCAP_CURE}"),
    }
}

fn bpf_syscall(facts: &DoctorFacts) -> Check {
    let check = |found: String| Check::ok("bpf()", found, "loading probes");
    let filtered = facts.seccomp_mode == Some(2);
    let permitted = facts
        .privileges
        .as_ref()
        .is_none_or(|privileges| privileges.suffices_for(Capability::CAP_BPF));
    match facts.bpf_call {
        BpfCall::Works => check("works".to_owned()),
        BpfCall::NotBuiltIn => check("not in this kernel".to_owned())
            .but(Status::Missing, "a kernel built with CONFIG_BPF_SYSCALL=y"),
        BpfCall::Blocked(errno) | BpfCall::NoMaps(errno) if !permitted => {
            check(refused(errno)).but(Status::Missing, "CAP_BPF, as above")
        }
        BpfCall::Blocked(errno) | BpfCall::NoMaps(errno) if filtered => {
            check(format!("{}; a seccomp filter is active", refused(errno))).but(
                Status::Missing,
                "a seccomp profile that lets bpf() and perf_event_open() through \
                 (docker: --cap-add BPF or --security-opt seccomp=unconfined)",
            )
        }
        BpfCall::Blocked(errno) | BpfCall::NoMaps(errno) => check(refused(errno)).but(
            Status::Missing,
            "a security module may refuse it: see the kernel's log (dmesg, journalctl -k)",
        ),
    }
}

fn refused(errno: i32) -> String {
    format!("refused: {}", std::io::Error::from_raw_os_error(errno))
}

fn bpf_jit(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "probes at their usual cost";
    match facts.bpf_jit_enable {
        Some(0) => Check::ok("BPF JIT", "off", NEEDED_FOR)
            .but(Status::Warning, "sysctl net.core.bpf_jit_enable=1"),
        Some(_) => Check::ok("BPF JIT", "on", NEEDED_FOR),
        // The setting belongs to the initial network namespace.
        None => Check::ok("BPF JIT", "not shown by this host", NEEDED_FOR),
    }
}

fn unprivileged_bpf(facts: &DoctorFacts) -> Check {
    let found = match facts.unprivileged_bpf_disabled {
        Some(0) => "open to all users",
        Some(1) => "closed until the next boot",
        Some(_) => "closed",
        None => "not shown by this host",
    };
    Check::ok(
        "unprivileged BPF",
        found,
        "nothing: trainprof has its capabilities",
    )
}

fn perf_events(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "uprobes (allocation, GPU calls) and sampling";
    let admin = facts
        .privileges
        .as_ref()
        .is_some_and(|privileges| privileges.has(Capability::CAP_SYS_ADMIN));
    match facts.perf_event_paranoid {
        // Levels above 2 are distributions' own, and shut out everyone but CAP_SYS_ADMIN.
        Some(level) if level >= 3 && !admin => {
            Check::ok("perf_event_paranoid", level.to_string(), NEEDED_FOR).but(
                Status::Warning,
                "sysctl kernel.perf_event_paranoid=2, or sudo trainprof",
            )
        }
        Some(level) => Check::ok("perf_event_paranoid", level.to_string(), NEEDED_FOR),
        None => Check::ok(
            "perf_event_paranoid",
            "this kernel has no perf events",
            NEEDED_FOR,
        )
        .but(Status::Warning, "a kernel built with CONFIG_PERF_EVENTS=y"),
    }
}

fn sampling(facts: &DoctorFacts) -> Check {
    let check = |found: String| {
        Check::ok(
            "perf_event_open()",
            found,
            "sampling what threads do on the CPU",
        )
    };
    match facts.perf_call {
        PerfCall::Works => check("works".to_owned()),
        PerfCall::Refused(errno @ libc::ENOSYS) => check(refused(errno)).but(
            Status::Warning,
            "a kernel built with CONFIG_PERF_EVENTS=y, and a seccomp profile that lets perf_event_open() through",
        ),
        PerfCall::Refused(errno) if facts.seccomp_mode == Some(2) => {
            check(format!("{}; a seccomp filter is active", refused(errno))).but(
                Status::Warning,
                "a seccomp profile that lets perf_event_open() through \
                 (docker: --cap-add PERFMON or --security-opt seccomp=unconfined)",
            )
        }
        PerfCall::Refused(errno) => check(refused(errno)).but(
            Status::Warning,
            "CAP_PERFMON and sysctl kernel.perf_event_paranoid=2, or sudo trainprof",
        ),
    }
}

fn ptrace(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "reading the memory of processes (Python's stacks)";
    let ptrace = facts
        .privileges
        .as_ref()
        .is_some_and(|privileges| privileges.has(Capability::CAP_SYS_PTRACE));
    let check = |found: &str| Check::ok("ptrace_scope", found, NEEDED_FOR);
    match facts.ptrace_scope {
        None => check("no restriction (no Yama)"),
        Some(0) => check("0, no restriction"),
        // Documentation/admin-guide/LSM/Yama.rst: 1 and 2 let CAP_SYS_PTRACE through, 3 lets nobody.
        Some(3) => check("3, nobody").but(
            Status::Warning,
            "cannot be lowered before a reboot; remove kernel.yama.ptrace_scope=3 from sysctl.d",
        ),
        Some(level) if ptrace => check(&format!("{level}, which CAP_SYS_PTRACE passes")),
        Some(level) => check(&format!("{level}, children or administrators only"))
            .but(Status::Warning, "CAP_SYS_PTRACE, as above"),
    }
}

fn pid_namespace(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "process numbers that are those of the kernel";
    match facts.initial_pid_namespace {
        Some(true) => Check::ok("pid namespace", "the initial one", NEEDED_FOR),
        Some(false) => Check::ok("pid namespace", "a container's own", NEEDED_FOR).but(
            Status::Missing,
            "run trainprof on the host, or with docker run --pid=host, or hostPID: true in the pod",
        ),
        None => {
            Check::ok("pid namespace", "unknown", NEEDED_FOR).but(Status::Missing, "mount /proc")
        }
    }
}

fn cgroups(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "the job's limits and its container";
    match (facts.cgroup_v1, facts.cgroup_v2) {
        (true, true) => Check::ok("cgroups", "versions 1 and 2", NEEDED_FOR),
        (true, false) => Check::ok("cgroups", "version 1", NEEDED_FOR),
        (false, true) => Check::ok("cgroups", "version 2", NEEDED_FOR),
        (false, false) => Check::ok("cgroups", "not mounted", NEEDED_FOR)
            .but(Status::Warning, "in a container, mount /sys/fs/cgroup"),
    }
}

fn pressure(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "telling a loaded host from a slow job";
    if facts.pressure {
        Check::ok("pressure (PSI)", "on", NEEDED_FOR)
    } else {
        Check::ok("pressure (PSI)", "off", NEEDED_FOR)
            .but(Status::Warning, "boot with psi=1 (CONFIG_PSI)")
    }
}

fn tracefs(facts: &DoctorFacts) -> Check {
    let found = match &facts.tracefs {
        Some(mount_point) => format!("mounted at {mount_point}"),
        None => "not mounted".to_owned(),
    };
    Check::ok("tracefs", found, "nothing: probes attach by BTF")
}

fn gpu(facts: &DoctorFacts) -> Check {
    const NEEDED_FOR: &str = "GPU utilisation and idle time";
    match (facts.nvidia_device, &facts.nvml_library) {
        (true, Some(library)) => Check::ok("NVIDIA GPU", library, NEEDED_FOR),
        (false, None) => Check::ok("NVIDIA GPU", "none", NEEDED_FOR),
        (true, None) => Check::ok("NVIDIA GPU", "a device, but no libnvidia-ml.so.1", NEEDED_FOR).but(
            Status::Warning,
            "install the driver's NVML (libnvidia-compute, nvidia-driver-NVML), in a container give it \
             NVIDIA_DRIVER_CAPABILITIES=utility, or name it: --gpu PATH",
        ),
        (false, Some(library)) => Check::ok("NVIDIA GPU", format!("{library}, but no device"), NEEDED_FOR).but(
            Status::Warning,
            "load the driver (nvidia-smi does), or give the container the GPU: --gpus all",
        ),
    }
}
