//! Where every process is probed until it ends: what was seen is asked for now and then.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use super::{Allocs, Open};
use crate::{kernel::AllocProbes, record::Record, time::KtimeNs};

/// At the end of the watch what is still to be told is waited for this long, and looked for this often. Without it nothing is
/// known of the last second, or at all, and a slow or crowded host takes seconds for it.
const LAST_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_millis(5);

impl Allocs {
    /// Everything is probed; what was seen is asked for once a second.
    pub(super) fn tell_all(
        &mut self,
        now: KtimeNs,
        alive: &BTreeMap<u32, u32>,
        probes: &AllocProbes,
    ) {
        let living: BTreeSet<u32> = alive.values().copied().collect();
        for pid in &living {
            if !self.kept.contains(pid)
                && !self.processes.get(pid).is_some_and(|process| process.out)
                && probes.keep(*pid)
            {
                self.kept.insert(*pid);
            }
        }
        let gone: Vec<u32> = self.kept.difference(&living).copied().collect();
        if gone.is_empty() && now.since(self.told_at) < 1_000_000_000 {
            return;
        }
        self.ask(now, probes);
        // What they did has been asked for.
        for pid in gone {
            probes.forget(pid);
            self.kept.remove(&pid);
        }
    }

    fn ask(&mut self, now: KtimeNs, probes: &AllocProbes) {
        self.told_at = now;
        self.windows += 1;
        if probes.tell(self.windows) {
            self.open = Some(Open {
                plan: None,
                number: self.windows,
                asked: now,
                calls: Vec::new(),
                stacks: Vec::new(),
            });
        }
    }

    /// What was seen since it was asked for last, waited for a while.
    pub(super) fn tell_the_rest(
        &mut self,
        now: KtimeNs,
        probes: &mut AllocProbes,
        out: &mut Vec<Record>,
    ) {
        let deadline = Instant::now() + LAST_PATIENCE;
        let mut asked = false;
        while Instant::now() < deadline {
            for notice in probes.notices() {
                self.notice(now, notice, out);
            }
            if self.open.is_none() {
                if asked || self.calibration.is_none() {
                    return;
                }
                asked = true;
                self.ask(now, probes);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}
