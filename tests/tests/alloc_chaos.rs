//! A job that executes, forks, loads another allocator or unmaps its own while probes are in that goes on unharmed.

use std::{ffi::OsString, process::Command, time::Duration};

use trainprof_tests::{
    Watch, Workload,
    cgroup::Group,
    env::{in_vm, left_out_in_vm, root_test},
    report::u64_at,
    text::Text,
    workload::{children, program},
};

/// Windows in which the job does it, and for how long it waits for them, seconds.
const TIMES: u64 = 2;
const PATIENCE: &str = "60";
/// For how long a first probe is waited for.
const PROBED: Duration = Duration::from_secs(60);

/// The job does something in the middle of a window: it sees the trap in its own code the moment before.
fn goes_on(name: &str, way: &str) {
    let Some(_turn) = root_test(name) else { return };
    // An emulated machine may be too slow for a window within that time.
    let modes: &[&str] = if in_vm() {
        &["full"]
    } else {
        &["auto", "full"]
    };
    for &mode in modes {
        // Where each call is probed until the end, there is one window.
        let times = if mode == "auto" { TIMES } else { 1 };
        let mut command = Command::new(program("unsettle"));
        command
            .args(["-", way, &times.to_string(), PATIENCE])
            .args([program("slab.so"), program("other.so")]);
        let mut job = Workload::spawn(command);
        let pid = job.pid();
        let libraries = ["slab.so", "libc.so"];
        let before = libraries.map(|library| Text::of(pid, library).bytes());
        let options = ["--overhead-budget", "25%", "--gpu", "off", "--alloc", mode];
        let watch = Watch::attach(pid, &options.map(OsString::from));
        job.go();
        job.wait_done();
        let ended = watch.stop();
        assert_eq!(ended.code(), 0, "{mode}: {}", ended.stderr);
        for (library, before) in libraries.iter().zip(&before) {
            // It may lie elsewhere by now.
            let text = Text::of(pid, library);
            let gone = text.becomes(Duration::from_secs(10), |now| now == before);
            assert!(gone, "{mode}: traps are left in {library}");
        }
        let truth = job.finish();
        let acted = u64_at(&truth, "/acted");
        assert_eq!(acted, times, "{mode}: windows in which it did: {truth}");
        let calls = u64_at(&truth, "/calls");
        assert!(calls > 1_000, "{mode}: {truth}");
        for key in ["/taken", "/given"] {
            assert_eq!(u64_at(&truth, key), calls, "{mode}: {key} of {truth}");
        }
        let report = ended.report();
        let windows = report.u64("/memory/allocation/windows");
        assert!(windows >= 1, "{mode}: {}", report.at("/cost"));
        let rows = report.rows("/memory/allocation/processes");
        let row = rows.iter().find(|row| row["pid"] == pid);
        let allocator = &row.unwrap_or_else(|| panic!("{mode}: {rows:?}"))["allocator"];
        assert_eq!(allocator, "slab.so", "{mode}");
        assert_eq!(report.lost(), 0, "{mode}: {}", report.at("/coverage"));
    }
}

#[test]
fn a_job_that_executes_in_a_window_goes_on() {
    goes_on("a_job_that_executes_in_a_window_goes_on", "exec");
}

#[test]
fn a_job_that_forks_in_a_window_goes_on() {
    goes_on("a_job_that_forks_in_a_window_goes_on", "fork");
}

#[test]
fn a_job_that_loads_another_allocator_in_a_window_goes_on() {
    goes_on(
        "a_job_that_loads_another_allocator_in_a_window_goes_on",
        "load",
    );
}

#[test]
fn a_job_that_unmaps_its_probed_allocator_goes_on() {
    goes_on("a_job_that_unmaps_its_probed_allocator_goes_on", "unload");
}

/// The search for who catches an exception ends at a return address that it does not know, and a trap on a return is one.
#[test]
fn a_job_that_catches_what_new_throws_is_unharmed() {
    let name = "a_job_that_catches_what_new_throws_is_unharmed";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a window within seconds") {
        return;
    }
    std::thread::scope(|scope| {
        for library in ["jemalloc", "tcmalloc"] {
            scope.spawn(move || {
                let mut job = Workload::start(&format!("mix-{library}"), ["2", "2000", "-x"]);
                let text = Text::of(job.pid(), &format!("lib{library}"));
                let before = text.bytes();
                let options = ["--gpu", "off", "--alloc", "full"];
                let watch = Watch::attach(job.pid(), &options.map(OsString::from));
                assert!(text.trapped(&before, PROBED), "{library}: no probe");
                job.go();
                job.wait_done();
                let ended = watch.stop();
                assert_eq!(ended.code(), 0, "{library}: {}", ended.stderr);
                let truth = job.finish();
                let thrown = u64_at(&truth, "/thrown");
                assert!(thrown > 100, "{library}: {truth}");
                let row = &ended.report().rows("/memory/allocation/processes")[0].clone();
                // The calls that threw are calls.
                let new = u64_at(row, "/functions/operator new");
                assert!(new > 2 * thrown, "{library}: {new} calls, {thrown} threw");
            });
        }
    });
}

/// When trainprof is killed: at once when a trap is seen, a moment later, and when the traps have just gone.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Opening,
    Within(Duration),
    Closing,
}

#[test]
fn being_killed_around_a_short_window_leaves_no_trap() {
    let name = "being_killed_around_a_short_window_leaves_no_trap";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a window within seconds") {
        return;
    }
    // While probes are put in, a process that is killed leaves them: often, not always.
    let moments = [
        Moment::Opening,
        Moment::Opening,
        Moment::Opening,
        Moment::Within(Duration::from_millis(5)),
        Moment::Closing,
    ];
    for moment in moments {
        killed(moment, |watch| watch.signal(libc::SIGKILL));
    }
}

#[test]
fn being_killed_by_name_and_group_leaves_no_trap() {
    let name = "being_killed_by_name_and_group_leaves_no_trap";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a window within seconds") {
        return;
    }
    for _ in 0..4 {
        killed(Moment::Opening, |watch| {
            // As `pkill -9 trainprof` and `kill -9 -GROUP` do, one process after the other.
            let all = descendants(watch.pid());
            let (name, group) = (comm(watch.pid()), group_of(watch.pid()));
            assert!(all.len() > 2, "no helper: {all:?}");
            // Nor does the kernel take that one while there is anybody else, where memory runs out.
            let keeper = all.iter().find(|pid| comm(**pid).trim() == "tp-windows");
            let keeper = keeper.expect("who opens windows");
            let score = std::fs::read_to_string(format!("/proc/{keeper}/oom_score_adj"));
            let least = if may_lower_scores() { "-1000" } else { "0" };
            assert_eq!(score.expect("its score").trim(), least);
            for pid in all {
                if comm(pid) == name || group_of(pid) == group {
                    // SAFETY: kill has no memory preconditions; nobody else's process has that number, since all of these live.
                    unsafe { libc::kill(pid, libc::SIGKILL) };
                }
            }
        });
    }
}

/// A process and all that it made, which made others.
fn descendants(pid: i32) -> Vec<i32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(pid) = all.get(next) {
        all.extend(children(*pid));
        next += 1;
    }
    all
}

/// Whether this process, and what it starts, has CAP_SYS_RESOURCE (number 24): root in a container often has not.
fn may_lower_scores() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("our status");
    let set = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let set = u64::from_str_radix(set.expect("capabilities").trim(), 16);
    set.expect("a number") >> 24 & 1 != 0
}

fn comm(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default()
}

fn group_of(pid: i32) -> i32 {
    // SAFETY: only asks.
    unsafe { libc::getpgid(pid) }
}

fn killed(moment: Moment, kill: impl FnOnce(&Watch)) {
    // What else runs here does not decide how soon it has used enough CPU time for a window.
    let group = Group::new("cpu", "killed");
    group.set_heaviest();
    let mut job = Workload::start("allocate-shared", ["60", "1000"]);
    group.put(job.pid());
    let text = Text::of(job.pid(), "libc.so");
    let before = text.bytes();
    let options = ["--overhead-budget", "25%", "--gpu", "off"];
    let watch = Watch::attach(job.pid(), &options.map(OsString::from));
    job.go();
    assert!(text.trapped(&before, PROBED), "{moment:?}: no window");
    match moment {
        Moment::Opening => {}
        Moment::Within(time) => std::thread::sleep(time),
        Moment::Closing => {
            let closed = text.becomes(PROBED, |now| now == before);
            assert!(closed, "the window stays open");
        }
    }
    kill(&watch);
    let ended = watch.wait();
    assert_eq!(ended.code(), 128 + libc::SIGKILL, "{}", ended.stderr);
    // What trainprof left behind ends by itself, and takes its probes with it; none comes after that.
    let gone = text.becomes(Duration::from_secs(10), |now| now == before);
    assert!(gone, "{moment:?}: traps are left in the job's code");
    let again = text.trapped(&before, Duration::from_secs(2));
    assert!(!again, "{moment:?}: a window opened after the end");
    let ran = run_ns(job.pid());
    std::thread::sleep(Duration::from_millis(500));
    let more = run_ns(job.pid()) - ran;
    assert!(job.is_alive(), "{moment:?}: the job has died");
    assert!(more > 50_000_000, "{moment:?}: it ran for {more} ns");
    job.kill();
}

/// CPU time of a process's first thread, nanoseconds (proc(5), `schedstat`).
fn run_ns(pid: i32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("schedstat");
    let first = text.split(' ').next().and_then(|ns| ns.parse().ok());
    first.expect("a number")
}
