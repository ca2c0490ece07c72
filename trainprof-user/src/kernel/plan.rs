//! Which probes to attach: a pure function of what the kernel offers, with a reason for each that is left out.

use std::{slice, sync::LazyLock};

use trainprof_common::{
    arch::HANDLERS,
    offsets::{MISSING, Offsets},
};

use crate::env::{CACHE_HITS, FILE_OPERATIONS};

/// One row of the catalogue: a probe, where it may attach, and what it cannot do without.
pub struct Probe {
    /// Name of the program in the eBPF object.
    pub program: &'static str,
    /// Names of its tracepoint, newest first.
    pub tracepoints: &'static [&'static str],
    /// What the report lacks without it.
    pub gives: &'static str,
    /// Without it there is nothing to report.
    pub essential: bool,
    /// Whether every offset that it reads unconditionally is there.
    ready: fn(&Offsets) -> bool,
}

fn present(offsets: &[u32]) -> bool {
    offsets.iter().all(|at| *at != MISSING)
}

fn task(o: &Offsets) -> bool {
    present(&[o.task_pid, o.task_tgid, o.task_flags])
}

fn folios(o: &Offsets) -> bool {
    task(o)
        && o.tell_objects()
        && present(&[
            o.folio_mapping,
            o.mapping_host,
            o.dentry_alias,
            o.inode_dentries,
            o.inode_writers,
        ])
}

fn uring(o: &Offsets) -> bool {
    task(o) && o.tell_objects() && present(&[o.kiocb_file, o.kiocb_opcode, o.kiocb_res])
}

fn nothing(_: &Offsets) -> bool {
    true
}

const fn row(
    program: &'static str,
    tracepoints: &'static [&'static str],
    gives: &'static str,
    essential: bool,
    ready: fn(&Offsets) -> bool,
) -> Probe {
    Probe {
        program,
        tracepoints,
        gives,
        essential,
        ready,
    }
}

const WAKERS: &str = "wake-ups by interrupts told apart from those by threads";

/// Every probe, in the order of attaching: interrupt depth before wake-ups, forks before anything is
/// followed, and a call's exit before its entry, so that no entry is left without its exit.
pub static CATALOGUE: LazyLock<Vec<Probe>> = LazyLock::new(|| {
    let handlers = HANDLERS
        .iter()
        .map(|name| row(name, slice::from_ref(name), WAKERS, false, nothing));
    handlers.chain(EVERYWHERE).collect()
});

/// Probes on tracepoints that kernels of every processor have.
const EVERYWHERE: [Probe; 17] = [
    row(
        "irq_handler_exit",
        &["irq_handler_exit"],
        WAKERS,
        false,
        nothing,
    ),
    row(
        "irq_handler_entry",
        &["irq_handler_entry"],
        WAKERS,
        false,
        nothing,
    ),
    row(
        "hrtimer_expire_exit",
        &["hrtimer_expire_exit"],
        WAKERS,
        false,
        nothing,
    ),
    row(
        "hrtimer_expire_entry",
        &["hrtimer_expire_entry"],
        WAKERS,
        false,
        nothing,
    ),
    row("softirq_exit", &["softirq_exit"], WAKERS, false, nothing),
    row("softirq_entry", &["softirq_entry"], WAKERS, false, nothing),
    row(
        "sched_process_exit",
        &["sched_process_exit"],
        "ends of threads",
        true,
        task,
    ),
    row(
        "sched_process_exec",
        &["sched_process_exec"],
        "programs executed",
        true,
        task,
    ),
    row(
        "sched_process_fork",
        &["sched_process_fork"],
        "child processes and threads",
        true,
        task,
    ),
    row(
        "sched_wakeup_new",
        &["sched_wakeup_new"],
        "threads that the kernel makes for io_uring",
        false,
        task,
    ),
    row(
        "sched_waking",
        &["sched_waking"],
        "who woke whom",
        true,
        task,
    ),
    row(
        "sched_switch",
        &["sched_switch"],
        "time on the CPU and waits",
        true,
        task,
    ),
    row(ENDS, &["sys_exit"], FILE_OPERATIONS, true, task),
    row("sys_enter", &["sys_enter"], FILE_OPERATIONS, true, task),
    row(
        "mm_filemap_add_to_page_cache",
        &["mm_filemap_add_to_page_cache"],
        CACHE_HITS,
        false,
        folios,
    ),
    row(
        "io_uring_complete",
        &["io_uring_complete"],
        "io_uring reads and writes",
        false,
        uring,
    ),
    row(
        "io_uring_submit",
        &["io_uring_submit_req", "io_uring_submit_sqe"],
        "io_uring reads and writes",
        false,
        uring,
    ),
];

/// Whether a program may be asked to run while it runs on the same CPU: handlers of timers run in softirqs too, and what is missed
/// then is put right at the next switch.
pub fn nests(program: &str) -> bool {
    CATALOGUE
        .iter()
        .any(|probe| probe.program == program && probe.gives == WAKERS)
}

/// The program that sees a CPU go on with another thread.
pub const SWITCHES: &str = "sched_switch";

/// The program that counts system calls at their ends, which [`super::Probes::count_calls`] takes off and puts back.
pub const ENDS: &str = "sys_exit";

/// The program that shows beginnings of system calls, which [`super::Probes::show_entries`] takes off and puts back.
pub const ENTRIES: &str = "sys_enter";

/// Every tracepoint that a probe may attach to.
pub fn tracepoints() -> Vec<&'static str> {
    CATALOGUE
        .iter()
        .flat_map(|probe| probe.tracepoints)
        .copied()
        .collect()
}

/// What becomes of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Attach to this tracepoint.
    Attach(&'static str),
    /// Leave it out: no tracepoint of any of its names.
    NoTracepoint,
    /// Leave it out: the kernel's structures lack a member that it reads.
    NoMember,
}

/// What is not told although its probes attach: what it is, and why.
pub fn untold(offsets: &Offsets) -> Option<(&'static str, &'static str)> {
    (!offsets.tell_objects()).then_some((
        FILE_OPERATIONS,
        "this kernel lacks a structure member that leads from a descriptor to what it refers to: waits have no objects, and only \
         calls on memory are counted",
    ))
}

/// Decides on one probe.
pub fn decide(probe: &Probe, has_tracepoint: impl Fn(&str) -> bool, offsets: &Offsets) -> Decision {
    match probe.tracepoints.iter().find(|name| has_tracepoint(name)) {
        None => Decision::NoTracepoint,
        Some(_) if !(probe.ready)(offsets) => Decision::NoMember,
        Some(name) => Decision::Attach(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(name: &str) -> &'static Probe {
        CATALOGUE
            .iter()
            .find(|p| p.program == name)
            .expect("in the catalogue")
    }

    #[test]
    fn an_older_name_serves_where_the_newer_is_missing() {
        let full = Offsets::resolve(|_, _| Some(8), |_, _, _| {});
        let submit = probe("io_uring_submit");
        assert_eq!(
            decide(submit, |_| true, &full),
            Decision::Attach("io_uring_submit_req")
        );
        assert_eq!(
            decide(submit, |name| name == "io_uring_submit_sqe", &full),
            Decision::Attach("io_uring_submit_sqe")
        );
        assert_eq!(decide(submit, |_| false, &full), Decision::NoTracepoint);
    }

    #[test]
    fn without_descriptors_that_is_said() {
        let mut offsets = Offsets::resolve(|_, _| Some(8), |_, _, _| {});
        assert_eq!(untold(&offsets), None);
        offsets.file_inode = MISSING;
        assert!(untold(&offsets).is_some_and(|(what, _)| what == "file operations"));
    }

    #[test]
    fn a_missing_member_disables_just_what_reads_it() {
        let mut offsets = Offsets::resolve(|_, _| Some(8), |_, _, _| {});
        offsets.kiocb_res = MISSING;
        assert_eq!(
            decide(probe("io_uring_complete"), |_| true, &offsets),
            Decision::NoMember
        );
        assert_eq!(
            decide(probe("sys_enter"), |_| true, &offsets),
            Decision::Attach("sys_enter")
        );
        offsets.fdt_fd = MISSING;
        for (program, decision) in [
            ("sched_switch", Decision::Attach("sched_switch")),
            ("sys_exit", Decision::Attach("sys_exit")),
            ("sys_enter", Decision::Attach("sys_enter")),
            ("mm_filemap_add_to_page_cache", Decision::NoMember),
        ] {
            assert_eq!(decide(probe(program), |_| true, &offsets), decision);
        }
        offsets.task_pid = MISSING;
        assert_eq!(
            decide(probe("sys_enter"), |_| true, &offsets),
            Decision::NoMember
        );
        assert_eq!(
            decide(probe("irq_work_entry"), |_| true, &offsets),
            Decision::Attach("irq_work_entry")
        );
    }
}
