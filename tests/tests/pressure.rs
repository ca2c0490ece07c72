//! What is read from the kernel while watching, against what the workload or the kernel's own files say.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant};

use serde_json::Value;
use trainprof_common::thread::NR_STOPPED;
use trainprof_tests::cgroup::Group;
use trainprof_tests::env::{in_vm, left_out_in_vm, root_test, skip};
use trainprof_tests::report::{f64_at, u64_at};
use trainprof_tests::{Checks, Finished, Watch, Workload};
use trainprof_user::record::fact::{
    CgroupMemorySample, HostSample, ProcessSample, QuotaSample, WaitFact,
};
use trainprof_user::record::{Reader, Record};

fn records(of: &Finished) -> Vec<Record> {
    let mut reader = Reader::open(&of.recording).expect("a recording");
    reader
        .records()
        .collect::<Result<_, _>>()
        .expect("whole records")
}

fn pick<T>(records: &[Record], which: impl Fn(&Record) -> Option<T>) -> Vec<T> {
    records.iter().filter_map(which).collect()
}

/// Watches a workload from gate to gate.
fn watched(workload: Workload) -> (Vec<Record>, Value) {
    let mut workload = workload;
    let watch = Watch::attach(workload.pid(), &[]);
    workload.go();
    workload.wait_done();
    let ended = watch.stop();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    (records(&ended), workload.finish())
}

fn press(args: &[&str]) -> Workload {
    Workload::start("press", args)
}

fn memory_of(records: &[Record], pid: u32) -> Vec<ProcessSample> {
    pick(records, |record| match record {
        Record::ProcessMemory(sample) if sample.pid == pid => Some(*sample),
        _ => None,
    })
}

#[test]
fn throttling_is_the_groups_own_account() {
    let Some(_turn) = root_test("throttling_is_the_groups_own_account") else {
        return;
    };
    let group = Group::new("cpu", "quota");
    // Heavy, so that it is the quota that keeps it off the CPU and not what else runs here.
    group.set_heaviest();
    group.set_quota(20_000, 100_000);
    let mut workload = press(&["burn", "5"]);
    group.put(workload.pid());
    let stat = || {
        [
            group.stat("cpu.stat", "nr_periods"),
            group.stat("cpu.stat", "nr_throttled"),
            group.throttled_ns(),
        ]
    };
    let before = stat();
    let watch = Watch::attach(workload.pid(), &[]);
    let attached = stat();
    workload.go();
    workload.wait_done();
    let stopping = stat();
    let ended = watch.stop();
    let after = stat();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let records = records(&ended);
    let samples: Vec<QuotaSample> = pick(&records, |record| match record {
        Record::Quota(sample) if sample.cgroup == group.path => Some(sample.clone()),
        _ => None,
    });
    let mut checks = Checks::new();
    checks.that(samples.len() >= 4, || format!("{} samples", samples.len()));
    let (first, last) = (&samples[0], &samples[samples.len() - 1]);
    let counted = [
        last.periods - first.periods,
        last.throttled_periods - first.throttled_periods,
        last.throttled_ns - first.throttled_ns,
    ];
    // The first sample is from before the line that all probes are live, the last from the very end.
    for (i, what) in ["periods", "throttled periods", "throttled ns"]
        .iter()
        .enumerate()
    {
        let (least, most) = (stopping[i] - attached[i], after[i] - before[i]);
        checks.that((least..=most).contains(&counted[i]), || {
            format!("{what}: {}, truth {least} to {most}", counted[i])
        });
    }
    checks.that(counted[1] >= 20, || {
        format!("throttled in {} periods only", counted[1])
    });
    checks.that(
        samples
            .iter()
            .all(|s| (s.quota_us, s.period_us) == (20_000, 100_000)),
        || format!("quota and period: {first:?}"),
    );
    hosts_time_adds_up(&mut checks, &records);
    // It does nothing but compute, on a fifth of a CPU. Host and virtual machines have one version of control groups each.
    let report = ended.report();
    let (verdict, duration_s) = (report.at("/verdict"), report.f64("/duration_s"));
    checks.that(verdict["bottleneck"] == "cpu-throttled", || {
        format!("the verdict: {verdict}")
    });
    let stopped = counted[2] as f64 / 1e9 / duration_s;
    let share = verdict["share"].as_f64().unwrap_or(0.0);
    checks.that((share - stopped).abs() <= 0.05, || {
        format!("throttled for {stopped:.3} of the time, told {share:.3}")
    });
    checks.done();
}

#[test]
fn pressure_is_the_groups_own_account() {
    let name = "pressure_is_the_groups_own_account";
    let Some(_turn) = root_test(name) else { return };
    let Some(group) = Group::with_pressure("stalls") else {
        return skip(name, "no control groups of version 2 with pressure");
    };
    // Two that want one CPU: one of them stalls all the time.
    let mut hog = press(&["burn", "60", "0"]);
    let mut workload = press(&["burn", "3", "0"]);
    for pid in [hog.pid(), workload.pid()] {
        group.put(pid);
    }
    hog.go();
    let some = || group.stalled_us("cpu.pressure", "some") as f64 / 1e6;
    let before = some();
    let watch = Watch::attach(workload.pid(), &[]);
    let attached = some();
    workload.go();
    workload.wait_done();
    let stopping = some();
    let ended = watch.stop();
    let after = some();
    hog.kill();
    workload.finish();
    let report = ended.report();
    let mut checks = Checks::new();
    let rows = report.rows("/memory/cgroup_pressure");
    checks.that(
        rows.len() == 1 && rows[0]["cgroup"] == group.path.as_str(),
        || format!("{rows:?}, truth {}", group.path),
    );
    let stalled = f64_at(&rows[0], "/cpu_some_s");
    let (least, most) = (stopping - attached, after - before);
    eprintln!("stalled for {stalled} s, truth {least} to {most}");
    checks.that(least > 2.0, || format!("stalled for {least} s only"));
    checks.that((least - 1e-3..=most + 1e-3).contains(&stalled), || {
        format!("stalled for {stalled} s, truth {least} to {most}")
    });
    for key in [
        "memory_some_s",
        "memory_full_s",
        "cpu_full_s",
        "io_some_s",
        "io_full_s",
    ] {
        let told = rows[0][key].as_f64();
        checks.that(told.is_some_and(|s| s <= stalled), || {
            format!("{key}: {told:?}")
        });
    }
    checks.done();
}

/// Every CPU is busy, idle or stolen all the time.
fn hosts_time_adds_up(checks: &mut Checks, records: &[Record]) {
    let hosts: Vec<HostSample> = pick(records, |record| match record {
        Record::Host(sample) => Some(*sample),
        _ => None,
    });
    let (first, last) = (hosts[0], hosts[hosts.len() - 1]);
    let all = |s: &HostSample| s.busy_ns + s.idle_ns + s.steal_ns;
    let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    let seconds = last.at.seconds_since(first.at);
    checks.that(seconds > 2.5, || format!("host seen for {seconds} s"));
    let share = (all(&last) - all(&first)) as f64 / 1e9 / (seconds * cpus);
    // The kernel counts ticks, of which it misses some where its CPUs are emulated by one.
    let least = if in_vm() { 0.6 } else { 0.9 };
    checks.that((least..1.1).contains(&share), || {
        format!("{share} of the CPUs' time is accounted for")
    });
    checks.that(last.memory_available_bytes.is_some(), || {
        "no memory available".into()
    });
}

#[test]
fn memory_grows_as_the_job_touches_it() {
    let Some(_turn) = root_test("memory_grows_as_the_job_touches_it") else {
        return;
    };
    let group = Group::new("memory", "grow");
    let limit = 512 << 20;
    group.set_memory_limit(limit);
    let workload = press(&["grow", "4", "10"]);
    group.put(workload.pid());
    let pid = workload.pid() as u32;
    let (records, truth) = watched(workload);
    let samples = memory_of(&records, pid);
    let mut checks = Checks::new();
    checks.that(samples.len() >= 5, || format!("{} samples", samples.len()));
    let grown = |last: u64, first: u64| last.saturating_sub(first) as f64;
    let touched = u64_at(&truth, "/bytes") as f64;
    // The kernel's counters may be some pages per CPU behind.
    let slack = 2e6;
    let mut agree = |what: &str, found: f64| {
        checks.that((found - touched).abs() < slack, || {
            format!("{what}: {found} bytes, touched {touched}")
        });
    };
    let (first, last) = (samples[0], samples[samples.len() - 1]);
    agree("anonymous", grown(last.anon_bytes, first.anon_bytes));
    let groups: Vec<CgroupMemorySample> = pick(&records, |record| match record {
        Record::CgroupMemory(sample) if sample.cgroup == group.path => Some(sample.clone()),
        _ => None,
    });
    let ends = (&groups[0], &groups[groups.len() - 1]);
    let anon = |sample: &CgroupMemorySample| sample.anon_bytes.unwrap_or_default();
    agree("group's anonymous", grown(anon(ends.1), anon(ends.0)));
    agree("group", grown(ends.1.usage_bytes, ends.0.usage_bytes));
    checks.that(ends.1.limit_bytes == Some(limit), || {
        format!("limit {:?}, truth {limit}", ends.1.limit_bytes)
    });
    checks.that(ends.1.oom_kills == Some(0), || {
        format!("killed {:?} times", ends.1.oom_kills)
    });
    // In the middle, where it grows all the time.
    let (a, b) = (samples[1], samples[samples.len() - 3]);
    let slope = grown(b.anon_bytes, a.anon_bytes) / b.at.seconds_since(a.at);
    checks.that((8.5e6..=11.5e6).contains(&slope), || {
        format!("{slope} bytes a second, truth 10 MB")
    });
    // Nobody shares that memory: it is all in the proportional share, at the first and at the last look.
    let shares: Vec<u64> = samples.iter().filter_map(|s| s.pss_bytes).collect();
    checks.that(shares.len() >= 2, || format!("{shares:?}"));
    if let [first, .., last] = shares[..] {
        let found = grown(last, first);
        checks.that((found - touched).abs() < 4e6, || {
            format!("proportional: {found} bytes more, touched {touched}")
        });
    }
    checks.done();
}

#[test]
fn descriptors_are_counted() {
    let Some(_turn) = root_test("descriptors_are_counted") else {
        return;
    };
    let workload = press(&["open", "3", "20"]);
    let pid = workload.pid() as u32;
    let (records, truth) = watched(workload);
    let counts: Vec<u32> = memory_of(&records, pid)
        .iter()
        .filter_map(|sample| sample.descriptors)
        .collect();
    let mut checks = Checks::new();
    checks.that(counts.len() >= 2, || format!("{counts:?}"));
    checks.that(counts.is_sorted(), || format!("{counts:?} fall"));
    let opened = u64::from(counts[counts.len() - 1] - counts[0]);
    checks.exact("descriptors", u64_at(&truth, "/files"), opened);
    checks.done();
}

/// The command that the recording has of an outsider.
fn command_of(records: &[Record], process: u32) -> Vec<Vec<String>> {
    pick(records, |record| match record {
        Record::OutsiderCommand { pid, command } if *pid == process => Some(command.clone()),
        _ => None,
    })
}

#[test]
fn a_server_on_this_host_is_found_behind_its_socket() {
    let name = "a_server_on_this_host_is_found_behind_its_socket";
    let Some(_turn) = root_test(name) else { return };
    let port = TcpListener::bind("127.0.0.1:0")
        .and_then(|l| l.local_addr())
        .expect("a free port")
        .port();
    let mut server = press(&["serve", "0", &port.to_string(), "20"]);
    server.go();
    let client = press(&["ask", "2", &port.to_string()]);
    let client_tid = client.pid() as u32;
    let (records, truth) = watched(client);
    let mut checks = Checks::new();
    let waits: Vec<WaitFact> = pick(&records, |record| match record {
        Record::Wait(wait) if wait.tid == client_tid && wait.waker.tid == server.pid() as u32 => {
            Some(*wait)
        }
        _ => None,
    });
    let mut by_socket = BTreeMap::<u64, u64>::new();
    for wait in &waits {
        *by_socket.entry(wait.object.id).or_default() += wait.wait_ns + wait.runnable_ns;
    }
    let (inode, ns) = by_socket
        .iter()
        .max_by_key(|(_, ns)| **ns)
        .expect("waits that the server ended");
    checks.near("waited", f64_at(&truth, "/waited_s"), *ns as f64 / 1e9);
    let sockets = pick(&records, |record| match record {
        Record::Socket(socket) if socket.inode == *inode => {
            Some((socket.family.clone(), socket.peer.clone()))
        }
        _ => None,
    });
    let expected = [("tcp".to_owned(), Some(format!("127.0.0.1:{port}")))];
    checks.that(sockets == expected, || {
        format!("{sockets:?}, truth {expected:?}")
    });
    let commands = command_of(&records, server.pid() as u32);
    let arguments = ["-", "serve", "0", &port.to_string(), "20"];
    checks.that(commands.len() == 1 && commands[0][1..] == arguments, || {
        format!("{commands:?}, truth {arguments:?}")
    });
    checks.done();
}

#[test]
fn who_had_the_cpu_is_named() {
    let Some(_turn) = root_test("who_had_the_cpu_is_named") else {
        return;
    };
    // The two share their CPU with nobody else to speak of.
    let group = Group::new("cpu", "hog");
    group.set_heaviest();
    // Longer than the watch, however slow its beginning.
    let mut hog = press(&["burn", "60", "0"]);
    // And with a third one, that is often there last, but never for long.
    let mut nudger = press(&["nudge", "60", "0"]);
    let workload = press(&["burn", "3", "0"]);
    let tid = workload.pid() as u32;
    for pid in [hog.pid(), nudger.pid(), workload.pid()] {
        group.put(pid);
    }
    hog.go();
    nudger.go();
    let (records, _) = watched(workload);
    let (mut by_hog, mut by_all) = (0, 0);
    for record in &records {
        if let Record::Wait(wait) = record
            && wait.tid == tid
        {
            by_all += wait.runnable_ns;
            if wait.ran_before == hog.pid() as u32 {
                by_hog += wait.runnable_ns;
            }
        }
    }
    let mut checks = Checks::new();
    // Two that want one CPU all the time.
    let share = by_all as f64 / 3e9;
    checks.that((0.4..0.7).contains(&share), || {
        format!("runnable for {share} of its time")
    });
    checks.that(by_hog * 10 > by_all * 8, || {
        format!("{by_hog} of {by_all} ns after the hog")
    });
    let outsiders = pick(&records, |record| match record {
        Record::Outsider { tid, pid, name } if *tid == hog.pid() as u32 => {
            Some((*pid, name.clone()))
        }
        _ => None,
    });
    checks.that(
        outsiders == [(Some(hog.pid() as u32), Some("press".to_owned()))],
        || format!("{outsiders:?}"),
    );
    let commands = command_of(&records, hog.pid() as u32);
    checks.that(
        commands.len() == 1 && commands[0][1..] == ["-", "burn", "60", "0"],
        || format!("{commands:?}"),
    );
    checks.done();
}

#[test]
fn who_has_the_other_cpus_is_told() {
    let name = "who_has_the_other_cpus_is_told";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "looks that are cheap") {
        return;
    }
    // Each has a CPU that the job never uses, where there are several.
    let cpus = available_parallelism().map_or(1, |count| count.get());
    let others = (1..cpus.max(2)).map(|number| (number % cpus).to_string());
    let mut hogs: Vec<Workload> = others.map(|cpu| press(&["burn", "60", &cpu])).collect();
    hogs.iter_mut().for_each(Workload::go);
    let before: Vec<f64> = hogs.iter().map(|hog| cpu_s(hog.pid())).collect();
    let begin = Instant::now();
    let job = press(&["burn", "6", "0"]);
    let job_pid = job.pid();
    let (records, _) = watched(job);
    let passed = begin.elapsed().as_secs_f64();
    let mut checks = Checks::new();
    let told = pick(&records, |record| match record {
        Record::Neighbours(fact) => Some(fact.clone()),
        _ => None,
    });
    let last = told.last().expect("looks at the host");
    checks.that(last.looked_ns > 800_000_000, || {
        format!("looked at for {} ns", last.looked_ns)
    });
    for (hog, before) in hogs.iter().zip(before) {
        let pid = hog.pid() as u32;
        let of_it = last.most.iter().find(|(told, _)| *told == pid);
        let share = of_it.map_or(0.0, |(_, ns)| *ns as f64) / last.looked_ns.max(1) as f64;
        let truth = (cpu_s(hog.pid()) - before) / passed;
        checks.that((share - truth).abs() < 0.1, || {
            format!("{pid} had {share} CPUs, truly {truth}")
        });
        let commands = command_of(&records, pid);
        checks.that(commands.len() == 1 && commands[0][2] == "burn", || {
            format!("{commands:?}")
        });
    }
    // The job is not its own neighbour, and neither are we.
    let strangers: Vec<u32> = told
        .iter()
        .flat_map(|fact| &fact.most)
        .map(|(pid, _)| *pid)
        .collect();
    let is_watch = |pid: &u32| {
        let commands = command_of(&records, *pid);
        commands
            .iter()
            .flatten()
            .any(|word| *word == job_pid.to_string())
    };
    checks.that(!strangers.contains(&(job_pid as u32)), || {
        format!("{strangers:?} and the job, {job_pid}")
    });
    checks.that(!strangers.iter().any(is_watch), || {
        format!("{strangers:?} and the watch")
    });
    checks.done();
}

/// CPU seconds that a process has used, by its own account (/proc/PID/schedstat).
fn cpu_s(pid: i32) -> f64 {
    let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("a live process");
    let first = text.split_ascii_whitespace().next();
    first
        .and_then(|ns| ns.parse().ok())
        .map_or(0.0, |ns: f64| ns / 1e9)
}

#[test]
fn a_stopped_job_is_told_from_one_that_waits() {
    let Some(_turn) = root_test("a_stopped_job_is_told_from_one_that_waits") else {
        return;
    };
    let mut workload = press(&["burn", "3"]);
    let watch = Watch::attach(workload.pid(), &[]);
    workload.go();
    let tell = |signal| {
        // SAFETY: plain integers.
        assert_eq!(unsafe { libc::kill(workload.pid(), signal) }, 0);
        Instant::now()
    };
    sleep(Duration::from_millis(500));
    let stopped = tell(libc::SIGSTOP);
    sleep(Duration::from_millis(1200));
    let truth = tell(libc::SIGCONT) - stopped;
    workload.wait_done();
    let ended = watch.stop();
    assert_eq!(ended.code(), 0, "{}", ended.stderr);
    let told: u64 = pick(&records(&ended), |record| match record {
        Record::Wait(wait) if wait.nr == NR_STOPPED => Some(wait.wait_ns),
        _ => None,
    })
    .iter()
    .sum();
    let error = told as f64 / truth.as_nanos() as f64 - 1.0;
    let mut checks = Checks::new();
    checks.that(error.abs() < 0.02, || {
        format!("stopped for {told} ns, truth {truth:?}")
    });
    let summary = ended.report().at("/verdict/summary").to_string();
    let who = format!("process {} was stopped", workload.pid());
    checks.that(summary.contains(&who), || summary.clone());
    workload.finish();
    checks.done();
}
