//! A window that is over, as records.

use std::collections::BTreeMap;

use super::{
    Allocs, Mode, Open,
    window::{Outcome, Spent},
};
use crate::{
    kernel::alloc::{CallSum, Closed, LifetimeSum, allocates, function_name},
    record::{
        Record,
        fact::{AllocCallsFact, AllocLifetimesFact, AllocWindowFact},
    },
    time::KtimeNs,
};

/// One call in so many has its stack taken where everything is seen.
const FULL_STACK_EVERY: u32 = 64;

impl Allocs {
    pub(super) fn closed(
        &mut self,
        now: KtimeNs,
        open: Open,
        closed: &Closed,
        out: &mut Vec<Record>,
    ) {
        let calls: u64 = open.calls.iter().map(|sum| sum.count).sum();
        let mut by_thread = BTreeMap::<u32, u64>::new();
        for sum in &open.calls {
            *by_thread.entry(sum.tid).or_default() += sum.count;
        }
        let outcome = Outcome {
            pid: closed.pid,
            counted_s: KtimeNs(closed.to).seconds_since(KtimeNs(closed.from)),
            calls,
            worst_calls: by_thread.values().copied().max().unwrap_or(0),
            emulated: closed.emulated_hits,
            stepped: closed.stepped_hits,
            returns: closed.return_hits,
            run_ns: closed.run_ns,
            sites: closed.sites,
            own_ns: closed.own_cpu_ns,
            paired: closed.lifetimes.is_some(),
        };
        let spent = self.governor.closed(now, &outcome);
        self.in_windows_ns += closed.own_cpu_ns;
        let stack_every = open.plan.map_or(FULL_STACK_EVERY, |plan| plan.stack_every);
        if closed.sites > 0 {
            self.window(&open, closed, spent, stack_every, out);
        }
        if self.mode == Mode::Auto {
            out.push(self.fact(now));
        }
    }

    /// Records a window; where every process was seen at once, one for each.
    fn window(
        &mut self,
        open: &Open,
        closed: &Closed,
        spent: Spent,
        stack_every: u32,
        out: &mut Vec<Record>,
    ) {
        let entries = (closed.emulated_hits + closed.stepped_hits).max(1);
        let mut by_process = BTreeMap::<u32, Vec<AllocCallsFact>>::new();
        if closed.pid != 0 {
            by_process.insert(closed.pid, Vec::new());
        }
        for sum in &open.calls {
            let pid = match closed.pid {
                0 => sum.pid,
                pid => pid,
            };
            by_process.entry(pid).or_default().push(calls_fact(sum));
        }
        // Lifetimes of several processes are not told apart, and belong to the busiest.
        let busiest = by_process
            .iter()
            .max_by_key(|(_, calls)| calls.iter().map(|c| c.count).sum::<u64>())
            .map_or(closed.pid, |(pid, _)| *pid);
        for (pid, calls) in by_process {
            let whole = pid == busiest;
            out.push(Record::AllocWindow(AllocWindowFact {
                number: closed.number,
                pid,
                from: KtimeNs(closed.from),
                to: KtimeNs(closed.to),
                full: closed.full,
                hit_ns: spent.job_ns as f64 / entries as f64,
                functions: closed
                    .functions
                    .iter()
                    .filter(|number| allocates(**number))
                    .filter_map(|number| function_name(*number).map(str::to_owned))
                    .collect(),
                cpu_ns: closed.cpu_ns,
                calls,
                stack_every,
                lifetimes: closed
                    .lifetimes
                    .as_ref()
                    .filter(|_| whole)
                    .map(lifetimes_fact),
                lost: if whole { closed.lost } else { 0 },
                sites: closed.sites + closed.returns,
                hits: if whole { entries } else { 0 },
                job_ns: if whole { spent.job_ns } else { 0 },
                pause_ns: spent.pause_ns,
                own_ns: if whole { closed.own_cpu_ns } else { 0 },
            }));
        }
        self.sites
            .add(closed.number, busiest, &open.stacks, KtimeNs(closed.to));
    }
}

fn calls_fact(sum: &CallSum) -> AllocCallsFact {
    AllocCallsFact {
        tid: sum.tid,
        function: function_name(sum.function).unwrap_or("?").to_owned(),
        allocates: allocates(sum.function),
        count: sum.count,
        bytes: sum.bytes,
        sizes: sum.sizes.clone(),
    }
}

fn lifetimes_fact(sum: &LifetimeSum) -> AllocLifetimesFact {
    AllocLifetimesFact {
        one_in: sum.one_in,
        tracked: sum.tracked,
        tracked_bytes: sum.tracked_bytes,
        freed: sum.freed,
        freed_bytes: sum.freed_bytes,
        quick: sum.quick,
        quick_bytes: sum.quick_bytes,
        ns: sum.ns.clone(),
    }
}
