//! Every function of an allocator, the C library's and others, preloaded and linked: rates, call sites, lifetimes.

use std::{collections::BTreeMap, ffi::OsString, path::Path, process::Command, time::Duration};

use serde_json::Value;
use trainprof_tests::{
    Checks, Data, Watch, Workload,
    env::{left_out_in_vm, root_test, skip},
    report::{Report, at, f64_at},
    text::Text,
    workload::{BESIDE, children, is_built, program},
};

const LIBRARIES: &str = "/usr/lib/x86_64-linux-gnu";
const JEMALLOC: &str = "libjemalloc.so.2";
const TCMALLOC: &str = "libtcmalloc_minimal.so.4";
/// Within so long all that is called is probed, once what that costs is known.
const PROBED: Duration = Duration::from_secs(60);

/// A job by the allocator that it has, and how it came by that.
#[derive(Clone, Copy, Debug)]
struct Job {
    program: &'static str,
    preload: Option<&'static str>,
    /// What serves it.
    allocator: &'static str,
    /// Which of its functions answers a call: what is not here does so itself. A function that calls another one that is
    /// probed is counted there.
    answered_by: &'static [(&'static str, &'static str)],
    /// Ways whose memory cannot be followed: what answers them may throw.
    not_followed: &'static [&'static str],
    /// The way that it goes oftenest, and its function.
    often: &'static str,
    by: &'static str,
}

const OF_JEMALLOC: &[(&str, &str)] = &[
    ("operator new[]", "operator new"),
    ("aligned new", "aligned_alloc"),
    ("nothrow aligned new", "aligned_alloc"),
];
const OF_TCMALLOC: &[(&str, &str)] = &[
    ("operator new[]", "operator new"),
    ("aligned new", "operator new"),
    ("nothrow aligned new", "operator new"),
    ("posix_memalign", "aligned_alloc"),
    ("valloc", "aligned_alloc"),
    ("pvalloc", "aligned_alloc"),
];

const JOBS: [Job; 4] = [
    Job {
        program: "mix",
        preload: None,
        allocator: "libc.so",
        // C++'s operators are the C++ library's, which ask it.
        answered_by: &[
            ("operator new", "malloc"),
            ("operator new[]", "malloc"),
            ("aligned new", "aligned_alloc"),
            ("nothrow aligned new", "aligned_alloc"),
        ],
        not_followed: &[],
        often: "malloc",
        by: "by_malloc",
    },
    Job {
        program: "mix",
        preload: Some(JEMALLOC),
        allocator: "libjemalloc",
        answered_by: OF_JEMALLOC,
        not_followed: &["operator new", "operator new[]"],
        often: "posix_memalign",
        by: "by_posix_memalign",
    },
    Job {
        program: "mix-jemalloc",
        preload: None,
        allocator: "libjemalloc",
        answered_by: OF_JEMALLOC,
        not_followed: &["operator new", "operator new[]"],
        often: "operator new",
        by: "by_new",
    },
    Job {
        program: "mix-tcmalloc",
        preload: None,
        allocator: "libtcmalloc",
        answered_by: OF_TCMALLOC,
        not_followed: &["operator new", "operator new[]", "aligned new"],
        often: "operator new",
        by: "by_new",
    },
];

impl Job {
    fn start(&self, seconds: u32, work: u32, extra: &[&str]) -> Workload {
        let mut command = Command::new(program(self.program));
        command.args([
            "-",
            &seconds.to_string(),
            &work.to_string(),
            "-o",
            self.often,
        ]);
        command.args(extra);
        if let Some(library) = self.preload {
            command.env("LD_PRELOAD", format!("{LIBRARIES}/{library}"));
        }
        Workload::spawn(command)
    }

    /// What the job counted by the functions that answered.
    fn by_function<'t>(&self, truth: &'t Value, what: &str) -> BTreeMap<&'t str, u64> {
        let mut out = BTreeMap::new();
        let ways = at(truth, what).as_object().expect("counts by way");
        for (way, n) in ways {
            let other = self.answered_by.iter().find(|(of, _)| of == way);
            let function = other.map_or(way.as_str(), |(_, by)| by);
            *out.entry(function).or_default() += n.as_u64().expect("a count");
        }
        out.retain(|_, n| *n > 0);
        out
    }
}

/// Whether the allocators are there, and what calls them.
fn all_there(name: &str) -> bool {
    let missing = [JEMALLOC, TCMALLOC]
        .into_iter()
        .find(|library| !Path::new(LIBRARIES).join(library).exists());
    let missing = missing.or_else(|| (!is_built("mix-tcmalloc")).then_some("c++"));
    if let Some(missing) = missing {
        skip(name, &format!("no {missing}: `cargo xtask setup --test`"));
    }
    missing.is_none()
}

fn options(mode: &str) -> Vec<OsString> {
    ["--overhead-budget", "25%", "--gpu", "off", "--alloc", mode]
        .map(OsString::from)
        .to_vec()
}

/// An allocator's code in a process, and what it is before anything is probed.
fn unprobed(workload: &Workload, allocator: &str) -> (Text, Vec<u8>) {
    let text = Text::of(workload.pid(), allocator);
    let before = text.bytes();
    (text, before)
}

/// Waits until every process has its probes.
fn wait_until_probed(all: &[(Text, Vec<u8>)]) {
    for (text, before) in all {
        assert!(text.trapped(before, PROBED), "no probe");
    }
    // The first is in: so are the others soon.
    std::thread::sleep(Duration::from_secs(2));
}

/// The one row of a list of processes.
fn row_of(report: &Report, pid: i32) -> &Value {
    let rows = report.rows("/memory/allocation/processes");
    let row = rows.iter().find(|row| row["pid"] == pid);
    row.unwrap_or_else(|| panic!("nothing of {pid}: {}", report.at("/memory/allocation")))
}

#[test]
fn each_call_of_each_function_is_counted_and_followed() {
    let name = "each_call_of_each_function_is_counted_and_followed";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a steady clock") {
        return;
    }
    if !all_there(name) {
        return;
    }
    // Side by side: counts do not depend on who has the CPU.
    let checks = std::thread::scope(|scope| {
        let all = JOBS.map(|job| scope.spawn(move || counted(&job)));
        all.map(|thread| thread.join().expect("a watch"))
    });
    checks.into_iter().for_each(Checks::done);
}

/// All calls of a job by function, where every call is probed.
fn counted(job: &Job) -> Checks {
    let mut workload = job.start(2, 4_000, &["-k", "4096"]);
    let pid = workload.pid();
    let before = [unprobed(&workload, job.allocator)];
    let watch = Watch::attach(pid, &options("full"));
    wait_until_probed(&before);
    workload.go();
    workload.wait_done();
    let report = watch.stop().report();
    let truth = workload.finish();
    let row = row_of(&report, pid);
    let mut checks = Checks::new();
    let truly = job.by_function(&truth, "/calls");
    let told: BTreeMap<&str, u64> = (row["functions"].as_object().expect("functions").iter())
        .map(|(name, n)| (name.as_str(), n.as_u64().expect("a count")))
        .collect();
    eprintln!("{job:?}\ntold {told:?}\ntrue {truly:?}");
    // It counts while it tells.
    for function in truly.keys().chain(told.keys()) {
        let n = |of: &BTreeMap<&str, u64>| of.get(function).copied().unwrap_or(0);
        let (truly_n, told_n) = (n(&truly), n(&told));
        checks.that((truly_n..=truly_n + BESIDE).contains(&told_n), || {
            format!("{job:?}: {told:?} told, {truly:?} true: {function}")
        });
    }
    let site = report.at("/memory/sites/0");
    checks.that(site["function"] == job.by, || format!("{job:?}: {site}"));
    checks.that(site["module"] == job.program, || format!("{job:?}: {site}"));
    let allocator = row["allocator"].as_str().unwrap_or_default();
    checks.that(allocator.starts_with(job.allocator), || format!("{row}"));
    lived(job, &truth, &report, &mut checks);
    checks
}

/// Lifetimes are those of all that can be followed, and not of what `malloc` gave alone.
fn lived(job: &Job, truth: &Value, report: &Report, checks: &mut Checks) {
    let allocation = report.at("/memory/allocation");
    let kept_s = f64_at(truth, "/kept_s");
    checks.that(kept_s > 3e-3, || format!("{job:?}: kept for {kept_s} s"));
    let throws = |way: &str| job.not_followed.contains(&way);
    let of = |what: &str| -> f64 {
        let ways = at(truth, what).as_object().expect("counts by way");
        let followed = ways.iter().filter(|(way, _)| !throws(way));
        followed.map(|(_, n)| n.as_f64().expect("a count")).sum()
    };
    let truly = of("/quick_bytes") / of("/bytes");
    let told = &allocation["lifetimes"];
    let found = f64_at(told, "/freed_within_1ms_bytes_share");
    eprintln!("{job:?}: {found} of the bytes within 1 ms, truly {truly}: {told}");
    checks.that((found - truly).abs() <= 0.05, || {
        format!("{job:?}: {found} of the bytes within 1 ms, truly {truly}: {told}")
    });
}

#[test]
fn call_sites_are_those_of_their_own_process() {
    let name = "call_sites_are_those_of_their_own_process";
    let Some(_turn) = root_test(name) else { return };
    if !all_there(name) {
        return;
    }
    // One program twice, at other addresses: the one that does more, and the other.
    let busy = JOBS[0];
    let other = Job {
        often: "calloc",
        by: "by_calloc",
        ..busy
    };
    let mut workloads = [busy.start(4, 4_000, &[]), other.start(4, 40_000, &[])];
    let mut options = options("full");
    options.insert(0, workloads[1].pid().to_string().into());
    let before = [0, 1].map(|at| unprobed(&workloads[at], busy.allocator));
    let watch = Watch::attach(workloads[0].pid(), &options);
    wait_until_probed(&before);
    workloads.iter_mut().for_each(Workload::go);
    workloads.iter_mut().for_each(Workload::wait_done);
    let report = watch.stop().report();
    for (job, workload) in [busy, other].iter().zip(&workloads) {
        let sites = report.rows("/memory/sites");
        let site = sites.iter().find(|site| site["pid"] == workload.pid());
        assert_eq!(
            site.map(|site| &site["function"]),
            Some(&job.by.into()),
            "{sites:?}"
        );
    }
    for workload in workloads {
        workload.finish();
    }
}

#[test]
fn an_allocator_at_a_path_that_only_the_job_sees_is_probed() {
    let name = "an_allocator_at_a_path_that_only_the_job_sees_is_probed";
    let Some(_turn) = root_test(name) else { return };
    if left_out_in_vm(name, "a window within seconds") {
        return;
    }
    if !all_there(name) {
        return;
    }
    let data = Data::new();
    let source = data.folder("source");
    let inner = ["libprivate.so", "allocate-shared"];
    let copied = [Path::new(LIBRARIES).join(JEMALLOC), program(inner[1])];
    for (from, to) in copied.iter().zip(inner) {
        std::fs::copy(from, source.join(to)).expect("a copy");
    }
    // Empty on the host: only inside are they at these paths.
    let target = data.folder("inside");
    let mut command = Command::new(program("inns"));
    command.args([&source, &target]).arg("/usr/bin/env");
    let preload = format!("LD_PRELOAD={}", target.join(inner[0]).display());
    command.arg(preload).arg(target.join(inner[1]));
    command.args(["-", "9", "2000"]);
    let mut workload = Workload::spawn(command);
    let pid = children(workload.pid())[0];
    let text = Text::of(pid, inner[0]);
    let before = text.bytes();
    let watch = Watch::attach(pid, &options("auto"));
    assert!(!target.join(inner[0]).exists(), "the host sees it too");
    workload.go();
    workload.wait_done();
    let report = watch.stop().report();
    let gone = text.becomes(Duration::from_secs(5), |now| now == before);
    assert!(gone, "traps are left in the job's code");
    let truth = workload.finish();
    let row = row_of(&report, pid);
    assert_eq!(row["allocator"], inner[0], "{row}");
    let (truly, told) = (f64_at(&truth, "/calls_per_s"), f64_at(row, "/allocs_per_s"));
    let error = f64_at(row, "/allocs_per_s_error");
    eprintln!("{told} told, {truly} true, {error} stated as its error");
    let allowed = (truly * 0.1).max(2.0 * error);
    assert!(
        (told - truly).abs() <= allowed,
        "{told} told, {truly} true, {error} stated as its error"
    );
    let site = report.at("/memory/sites/0");
    assert_eq!(site["function"], "quick", "{site}");
    assert_eq!(site["module"], inner[1], "{site}");
}
