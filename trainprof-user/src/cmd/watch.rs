//! The live loop: when to drain, to count, to show and to stop.

use std::{collections::BTreeSet, future::Future, io, time::Duration};

use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{Instant, MissedTickBehavior, interval_at, sleep, sleep_until},
};

use super::{
    Failure,
    beat::{Beat, Due},
    cli::WatchArgs,
    launch::Child,
    output::Output,
    say,
    stop::{self, Event, Signals},
};
use crate::{
    gpu,
    kernel::{GRACE, KernelError, Limits, StatsSwitch},
    privilege::{self, Keep},
    record::fact::StopReason,
    session::{
        Id, Session,
        roles::{Role, roles},
    },
    source::{Live, SourceError, Watch, alloc::Mode, scan},
    time::KtimeNs,
};

/// How often the ring is drained when nothing is urgent; and where the budget is short, which makes intervals of four seconds.
const DRAIN: Duration = Duration::from_millis(250);
/// The first time sooner: whoever watches wants to see that something comes.
const FIRST_DRAIN: Duration = Duration::from_millis(50);
const SELDOM_DRAIN: Duration = Duration::from_secs(1);
/// How often we look how many calls the job makes, while they are very many; else at each drain.
const LOOK: Duration = Duration::from_millis(40);
/// How long the kernel counts our probes' run time, once per interval: counting costs the job a little.
const COUNTING: Duration = Duration::from_millis(20);
/// But for the first time it begins anywhere before the next drain, so that it cannot keep pace with the job's steps; where something
/// was waited for that may be over soon, not so late.
const COUNTS_SOON: Duration = Duration::from_millis(100);

/// Whose the watched processes are.
pub enum Job<'a> {
    Foreign,
    Ours(&'a mut Child),
}

/// Checks what can be checked before anything is opened or loaded.
pub fn check(pids: &[u32]) -> Result<(), Failure> {
    check_place()?;
    for pid in pids {
        scan::check_target(*pid).map_err(Failure::input)?;
    }
    privilege::check_can_profile().map_err(Failure::host)
}

/// Checks that processes have the numbers here that the kernel tells them by: others would be taken for them.
pub fn check_place() -> Result<(), Failure> {
    Err(Failure::host(match privilege::in_initial_pid_namespace() {
        Some(true) => return Ok(()),
        None => "cannot read /proc, which tells of processes: mount it (mount -t proc proc /proc)",
        Some(false) => {
            "this is a container's pid namespace, in which processes have other ids than on the host, so that nothing of the job would \
         be seen. Run trainprof on the host, or with docker run --pid=host, or hostPID: true in the pod, and give it the host's ids"
        }
    }))
}

/// Runs a future on this thread.
pub fn with_runtime<T>(future: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::host(format!("cannot start: {error}")))?
        .block_on(future)
}

/// A watch whose probes are live.
pub struct Begun {
    live: Live,
}

/// Attaches, gives up the privileges that are no longer needed, and says that the watch has begun.
pub fn begin(pids: &[u32], signals: bool, args: &WatchArgs) -> Result<Begun, Failure> {
    let gpu = &args.gpu;
    if args.alloc == Mode::Full {
        say(
            "--alloc full has probes on every call of the allocator: a job that allocates much runs several times slower \
             meanwhile",
        );
    }
    // Before any probe exists, so that this process never holds one.
    let switch = StatsSwitch::start();
    let driver = gpu::Driver::start(gpu).map_err(Failure::input)?;
    let watch = Watch {
        targets: pids.to_vec(),
        limits: Limits {
            gpu_calls: *gpu != gpu::Choice::Off,
            alloc: args.alloc != Mode::Off,
            ..Limits::for_this_host()
        },
        alloc: args.alloc,
        overhead_budget: args.overhead_budget,
    };
    let mut live = Live::attach(&watch).map_err(failure)?;
    live.set_helpers(driver, switch);
    privilege::drop_unneeded(Keep {
        read_processes: true,
        attach: false,
        attach_uprobes: false,
        administer: false,
        signal: signals,
    })
    .map_err(Failure::host)?;
    let asked: Vec<String> = pids.iter().map(u32::to_string).collect();
    say(format_args!(
        "watching {} ({} processes)",
        asked.join(" "),
        live.processes()
    ));
    Ok(Begun { live })
}

/// Which exit status a failure of the source deserves.
fn failure(error: SourceError) -> Failure {
    match error {
        SourceError::Target(_) => Failure::input(error),
        SourceError::Kernel(KernelError::Follow { .. }) => {
            Failure::host(format!("{error}. Too many threads?"))
        }
        _ => Failure::host(error),
    }
}

/// Watches until the time is over, the job has ended, or we are told to stop.
pub async fn until_done(
    begun: &mut Begun,
    output: &mut Output,
    duration: Option<Duration>,
    signals: &mut Signals,
    mut job: Job<'_>,
) -> Result<(), Failure> {
    let Begun { live } = begun;
    let ring = live
        .ring_fd()
        .try_clone_to_owned()
        .and_then(|fd| {
            // SAFETY: an owned descriptor that nobody else closes, and that lives inside the `AsyncFd`.
            unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }
                .map_err(io::Error::from)
        })
        .map_err(|error: io::Error| Failure::host(format!("cannot wait for events: {error}")))?;
    // An end that no clock can tell is none.
    let end = duration.and_then(|duration| Instant::now().checked_add(duration));
    let mut drain_at = Instant::now() + FIRST_DRAIN;
    let mut looks = interval_at(Instant::now(), LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut beat = Beat::default();
    let mut counts_at = None;
    let reason = loop {
        tokio::select! {
            () = sleep_until(drain_at) => {
                let drain = if live.are_drains_seldom() { SELDOM_DRAIN } else { DRAIN };
                drain_at = Instant::now() + drain;
                live.drain_events();
                if live.is_calm() {
                    live.look_at_pace();
                    // Not before: a timer that nobody waits for ends our sleep all the same.
                    if !live.is_calm() {
                        looks.reset();
                    }
                }
                match beat.drained(live.are_drains_seldom()) {
                    Due::Interval => {
                        interval(live, output).await?;
                    }
                    Due::CountNow => counts_at = Some(Instant::now()),
                    Due::Count => {
                        counts_at = Some(Instant::now() + live.counting_waits(drain));
                    }
                    Due::Nothing if live.has_something_to_count() && counts_at.is_none() => {
                        counts_at = Some(Instant::now() + live.counting_waits(COUNTS_SOON));
                    }
                    Due::Nothing => {}
                }
            }
            () = sleep_until(counts_at.unwrap_or_else(Instant::now)), if counts_at.is_some() => {
                counts_at = None;
                count(live).await;
            }
            _ = looks.tick(), if !live.is_calm() => {
                live.look_at_pace();
                continue;
            }
            ready = ring.readable() => {
                live.drain_events();
                if let Ok(mut guard) = ready {
                    guard.clear_ready();
                }
            }
            event = signals.next() => match (event, &mut job) {
                (Event::Signal(signal), Job::Ours(child)) => {
                    if !stop::has_come_to(signal, child.pid()) {
                        child.signal(signal);
                    }
                }
                (Event::Signal(_), Job::Foreign) => break StopReason::Interrupted,
                (Event::Child, Job::Ours(child)) => {
                    if child.try_wait().is_some() {
                        break StopReason::JobEnded;
                    }
                }
                (Event::Child, Job::Foreign) => {}
            },
            () = sleep_until(end.unwrap_or_else(Instant::now)), if end.is_some() => break StopReason::Duration,
        }
        output.put(&live.take());
        if live.processes() == 0 {
            break StopReason::JobEnded;
        }
    };
    let to = live.switch_over().map_err(failure)?;
    let to = collect(live, output, to).await?;
    live.stop(to, reason).map_err(failure)?;
    output.put(&live.take());
    if output.shows_progress() {
        output.progress.clear();
    }
    Ok(())
}

async fn interval(live: &mut Live, output: &mut Output) -> Result<KtimeNs, Failure> {
    let to = live.switch_over().map_err(failure)?;
    collect(live, output, to).await
}

async fn collect(live: &mut Live, output: &mut Output, to: KtimeNs) -> Result<KtimeNs, Failure> {
    sleep(GRACE).await;
    live.collect(to).map_err(failure)?;
    output.put(&live.take());
    output.flush();
    if live.may_have_other_trainers() {
        live.set_touched(&trainers(&output.session));
    }
    if output.shows_progress() {
        output.progress.show(&output.session, live.processes());
    }
    Ok(to)
}

/// The processes whose calls may tell steps apart, as the kernel has them.
fn trainers(session: &Session) -> BTreeSet<u32> {
    roles(session)
        .into_iter()
        .filter(|(_, role)| *role == Role::Trainer)
        .map(|(pid, _)| Id(pid).of_kernel())
        .collect()
}

/// Measures what the probes cost, for a moment.
async fn count(live: &mut Live) {
    if live.begin_counting() {
        sleep(COUNTING).await;
        live.end_counting();
    }
}

/// Passes signals on until a command of ours has ended; gives its exit status.
pub async fn wait_for(child: &mut Child, signals: &mut Signals) -> u8 {
    loop {
        if let Some(status) = child.try_wait() {
            return status;
        }
        if let Event::Signal(signal) = signals.next().await
            && !stop::has_come_to(signal, child.pid())
        {
            child.signal(signal);
        }
    }
}
