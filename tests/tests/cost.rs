//! What watching costs, as the report tells it.

use std::{
    ffi::OsString,
    process::Command,
    thread::sleep,
    time::{Duration, Instant},
};

use trainprof_tests::env::{left_out_in_vm, root_test};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::workload::{os, program};
use trainprof_tests::{Observed, Watch, Workload, bpf, observe};

fn watch(what: &str) -> Observed {
    let args: Vec<OsString> = vec![what.into()];
    let seen = observe("yielder", &args);
    eprintln!(
        "{what}: {:#}, {} calls in {} s",
        seen.report.0["cost"], seen.truth["calls"], seen.truth["took_s"]
    );
    seen
}

/// Nanoseconds in the probes for each call of the job; of them in calls that only give up the CPU; and the estimate in percent.
fn cost(seen: &Observed) -> (f64, f64, f64) {
    let calls = u64_at(&seen.truth, "/calls") as f64;
    let cost = &seen.report.0["cost"];
    (
        f64_at(cost, "/bpf_ns") / calls,
        f64_at(cost, "/bpf_spin_ns") / calls,
        f64_at(cost, "/slowdown_estimate_pct"),
    )
}

#[test]
fn a_thread_that_has_nothing_to_do_is_not_slowed_down() {
    let name = "a_thread_that_has_nothing_to_do_is_not_slowed_down";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a clock that tells nanoseconds") {
        return;
    }
    let (yielding, calling) = (watch("yield"), watch("other"));
    let (all, spin, estimate) = cost(&yielding);
    assert!(spin > 0.7 * all, "{spin} ns of {all} ns a yield");
    let (all_other, spin_other, estimate_other) = cost(&calling);
    assert!(
        spin_other < 0.05 * all_other,
        "{spin_other} ns of {all_other} ns a call that does not yield"
    );
    assert!(
        estimate < 0.5 * estimate_other,
        "{estimate} % of a thread that yields, {estimate_other} % of one that works"
    );
}

/// The kernel's check of the probes is nearly half of a start. How much of it there is is counted in instructions: one that is
/// followed along many ways counts many times (docs/ARCHITECTURE.md, *What the verifier taught*).
#[test]
fn the_kernel_checks_the_probes_without_going_along_many_ways() {
    let name = "the_kernel_checks_the_probes_without_going_along_many_ways";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(
        name,
        "the checks of a present kernel: older ones prune less",
    ) {
        return;
    }
    let before = bpf::held();
    let workload = Workload::start("sleeper", os(&[]));
    let watch = Watch::attach(workload.pid(), &os(&[&"--gpu", &"off"]));
    let programs = bpf::held().since(&before).programs;
    let checked = bpf::verified_instructions(&programs);
    drop((watch, workload));
    eprintln!("{} programs, {checked} instructions", programs.len());
    assert!(checked > 10_000, "not all programs were seen: {programs:?}");
    assert!(checked < 80_000, "{checked} instructions are checked");
}

/// The longest that two jobs are watched, in seconds.
const PATIENCE_S: f64 = 300.0;

/// Seconds after which what watching costs is below the budget, half as long again, for jobs that get so many CPUs: one that
/// others crowd earns the start later (docs/ARCHITECTURE.md, *The governor*: the most that is said there of S and of F beside so much work).
fn repaid_s(cpus: f64) -> f64 {
    let (start_s, lent_s, budget, fixed) = (0.3, 0.1 * cpus, 0.01, 0.006);
    let earned = budget * cpus - fixed;
    if earned > 0.0 {
        (1.5 * (start_s + lent_s) / earned).clamp(60.0, PATIENCE_S)
    } else {
        PATIENCE_S
    }
}

/// CPU time of a process, in seconds: utime and stime of proc_pid_stat(5).
fn cpu_s(pid: i32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the job runs");
    let (_, fields) = stat.rsplit_once(')').expect("a name in parentheses");
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().expect("a number of ticks"))
        .sum();
    // SAFETY: sysconf has no preconditions.
    ticks as f64 / unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64
}

#[test]
fn all_that_watching_costs_comes_below_the_budget() {
    let name = "all_that_watching_costs_comes_below_the_budget";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "CPUs that an emulator does not take") {
        return;
    }
    let mut jobs = [(); 2].map(|()| {
        let mut command = Command::new(program("allocate-shared"));
        command.args(["-", &format!("{}", PATIENCE_S + 60.0), "200"]);
        Workload::spawn(command)
    });
    let other = jobs[1].pid().to_string();
    let watch = Watch::attach(jobs[0].pid(), &os(&[&other, &"--gpu", &"off"]));
    let pids = jobs.each_ref().map(Workload::pid);
    for job in &mut jobs {
        job.go();
    }
    let from = Instant::now();
    loop {
        sleep(Duration::from_secs(1));
        let took = from.elapsed().as_secs_f64();
        let cpus = pids.map(cpu_s).iter().sum::<f64>() / took;
        if took >= repaid_s(cpus) {
            eprintln!("{cpus} CPUs for {took} s");
            break;
        }
    }
    let report = watch.stop().report();
    assert!(jobs.iter_mut().all(Workload::is_alive), "a job was harmed");
    drop(jobs);
    let cost = report.at("/cost");
    let processes = report.rows("/job/processes");
    let used: f64 = processes.iter().map(|p| f64_at(p, "/cpu_s")).sum();
    eprintln!("{used} s of CPU time: {cost:#}");
    let (spent, budget) = (f64_at(cost, "/spent_share"), f64_at(cost, "/budget"));
    assert_eq!(budget, 0.01);
    assert!(f64_at(cost, "/start_cpu_s") > 0.01, "{cost}");
    assert!(spent <= budget, "{spent} of {used} s: {cost}");
    // A short watch has some, and more open when the start is paid for.
    assert!(u64_at(cost, "/windows/count") >= 1, "{cost}");
    let worst = f64_at(cost, "/windows/worst_thread_share");
    assert!(worst <= 0.01, "{worst} added to a thread");
}
