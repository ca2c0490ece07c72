//! Workers that are never idle while the trainer waits for them and CPUs are free, or waits can overlap.

use serde_json::json;

use super::{
    Answer, Finding, Look, input_cpu::wanted_workers, loader, look::rounded, server::server,
};
use crate::analysis::{Kind, words};

/// Workers that are idle for less than this share are never waiting for work.
const BUSY: f64 = 0.85;
/// The trainer waits for data at least this share of the time.
const WAITS: f64 = 0.15;
/// No more workers than so many times those that there are: what more of them would do was not seen.
const MOST_TIMES: f64 = 4.0;
/// The same where there are none.
const MOST_READERS: f64 = 256.0;
/// Saving less of the time is no advice.
const WORTH: f64 = 0.05;

pub(super) fn rule(look: &Look) -> Answer {
    let trainer = look.trainer;
    if !look.enough() {
        return Answer::NotEnough("less than a second was seen");
    }
    let parallel = trainer.demand.parallel;
    let waits = trainer.stalled / trainer.wall;
    let wanted = wanted_workers(look);
    if trainer.cast.parallel() == 0 {
        return none_at_all(look);
    }
    let (Some(wanted), true) = (wanted, parallel > 0.0) else {
        return Answer::NotEnough("no worker was seen at work");
    };
    let busy = trainer.demand.busy / (parallel * trainer.wall);
    // What a lock keeps them from, more of them do not get either.
    let locked = trainer.demand.locked_out / trainer.demand.busy.max(1.0);
    let running: f64 = trainer.demand.run_by_kind.values().sum();
    // One that wants a CPU would use it.
    let at_work = trainer.demand.busy - trainer.demand.crowded;
    let cpu_each = running / at_work.max(1.0);
    let free = look.free_cpus();
    let room = free >= 0.3 * cpu_each || cpu_each < 0.1;
    if waits < WAITS || busy < BUSY || locked > 0.3 || !room || wanted <= parallel + 0.2 {
        return Answer::Clear;
    }
    // A local disk that the workers wait for is not made faster by asking it more at a time, nor a quota that they use up larger by more
    // of them.
    let waits_for = |kind| -> f64 {
        look.parts(kind)
            .filter(|share| share.in_stall && share.detail.outsider == 0)
            .map(|share| share.ns)
            .sum()
    };
    if (waits_for(Kind::StorageIo) + waits_for(Kind::CpuThrottled)) * 2.0 > trainer.stalled {
        return Answer::Clear;
    }
    let one = parallel.round() <= 1.0;
    let more = (parallel + (free / cpu_each.max(0.02)).floor().max(1.0))
        .min(wanted.ceil())
        .min(MOST_TIMES * parallel)
        .max(parallel + 1.0)
        .ceil();
    // The trainer's own work stays, and so does theirs, by more of them, and that of all on the CPUs that there are.
    let left = (1.0 - waits)
        .max(busy * parallel / more)
        .max(least_by_cpus(look))
        .max(least_by_server(look));
    if left > 1.0 - WORTH {
        return Answer::Clear;
    }
    let effect = look.about(1.0 / left);
    let threads = trainer.cast.workers.is_empty();
    let programs = !threads && look.makers_are_programs();
    let (who, several) = if threads {
        ("loader thread", "loader threads")
    } else if programs {
        ("program that it reads from", "programs that it reads from")
    } else {
        ("worker", "workers")
    };
    Answer::Found(Finding {
        kind: "too-few-workers",
        share: Some(waits),
        evidence: [
            ("workers", rounded(parallel)),
            ("workers_needed", rounded(wanted)),
            ("busy_share", rounded(busy)),
            ("free_cpus", rounded(free)),
        ]
        .into(),
        summary: format!(
            "{} busy {} of the time and the trainer waits for {}; {free:.1} CPUs are free",
            if one {
                format!("the only {who} is")
            } else {
                format!("the {parallel:.0} {several} are")
            },
            words::percent(busy),
            if one { "it" } else { "them" },
        ),
        advice: if threads {
            format!(
                "have about {more:.0} threads load instead of {parallel:.0}, or as many requests in flight (about {wanted:.1} would keep up with the trainer): {effect}"
            )
        } else if programs {
            format!(
                "run about {more:.0} of these at a time instead of {parallel:.0}, as workers that each run their own do (about {wanted:.1} would keep up with the trainer): {effect}"
            )
        } else if loader::are_of_its_own(look) {
            format!(
                "have about {more:.0} such processes make batches instead of {parallel:.0} (about {wanted:.1} would keep up with the trainer): {effect}"
            )
        } else {
            format!(
                "raise num_workers from {parallel:.0} to about {more:.0} (about {wanted:.1} would keep up with the trainer): {effect}"
            )
        },
        effect: None,
    })
}

/// The same of a trainer that makes its batches itself.
fn none_at_all(look: &Look) -> Answer {
    let trainer = look.trainer;
    // What a process outside the job hands to the trainer is not made sooner by workers that wait for it.
    let handed: f64 = look
        .parts(Kind::InputCpu)
        .filter(|share| share.detail.outsider != 0)
        .map(|share| share.ns)
        .sum();
    let computing = trainer.ns(Kind::InputCpu) - handed;
    let reading = trainer.ns(Kind::StorageIo) + trainer.ns(Kind::SmallFiles);
    let share = (computing + reading) / trainer.wall;
    if share < WAITS {
        return Answer::Clear;
    }
    if trainer.own_batches_guessed {
        return Answer::NotEnough("whether the trainer makes batches is not known");
    }
    let rest = 1.0 - share;
    let wanted = share / rest.max(1.0 / MOST_READERS);
    // Each of them computes for so much of its time.
    let cpu_each = computing.max(0.0) / (computing + reading);
    let workers = wanted
        .min(trainer.terms.cpus / cpu_each.max(1.0 / MOST_READERS))
        .ceil()
        .clamp(1.0, MOST_READERS);
    let condition = if reading > computing {
        ", if the storage serves as many at a time"
    } else {
        ""
    };
    let saved = 1.0 - rest.max(share / workers).max(least_by_cpus(look));
    if saved < WORTH {
        return Answer::Clear;
    }
    Answer::Found(Finding {
        kind: "too-few-workers",
        share: Some(share),
        evidence: [("workers", json!(0)), ("workers_needed", rounded(workers))].into(),
        summary: format!(
            "there are no workers: the trainer spends {} of its time making batches",
            words::percent(share)
        ),
        advice: format!(
            "num_workers={workers:.0} would make batches while the trainer computes, which saves up to {} of the time{condition}",
            words::percent(saved)
        ),
        effect: None,
    })
}

/// The part of the time that who answers the workers needs at the least for its own work.
fn least_by_server(look: &Look) -> f64 {
    let asked = Kind::NetworkIo;
    if look.trainer.ns(asked) * 2.0 < look.trainer.stalled {
        return 0.0;
    }
    server(look, asked).map_or(0.0, |server| server.busy)
}

/// The part of the time that the job's work on CPUs takes at the least: it needs as much of them as now, on those that it has or nobody uses.
/// Not known of one that may spin for its GPU.
fn least_by_cpus(look: &Look) -> f64 {
    if look.trainer.gpu_use.used {
        return 0.0;
    }
    let terms = &look.trainer.terms;
    let used = (terms.cpu - terms.cpu_apart).max(0.0) / look.trainer.wall.max(1.0);
    let room = used + look.free_cpus();
    if room > 0.0 { used / room } else { 0.0 }
}
