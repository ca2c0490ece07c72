//! Which threads beside the main ones were busy in the last interval: what Python code they run is worth knowing. Pure.

use std::collections::BTreeMap;

/// Part (0–1) of an interval that a thread is on a CPU for at the least.
const BUSY: f64 = 0.05;
/// Of each process, the busiest.
const MAX_BUSY: usize = 32;

/// See the module.
#[derive(Default)]
pub struct Busy {
    /// CPU time of each thread until the last interval, nanoseconds.
    before: BTreeMap<u32, u64>,
}

impl Busy {
    /// The busy ones by process, by their numbers. `threads`: number, process, and CPU time so far, nanoseconds, of all that are there.
    pub fn interval(
        &mut self,
        threads: impl Iterator<Item = (u32, u32, u64)>,
        length_ns: u64,
    ) -> BTreeMap<u32, Vec<u32>> {
        let mut now = BTreeMap::new();
        let mut ran = BTreeMap::<u32, Vec<(u64, u32)>>::new();
        for (tid, pid, ns) in threads {
            let new = ns.saturating_sub(self.before.get(&tid).copied().unwrap_or(0));
            now.insert(tid, ns);
            if tid != pid && new as f64 >= BUSY * length_ns as f64 {
                ran.entry(pid).or_default().push((new, tid));
            }
        }
        self.before = now;
        ran.into_iter()
            .map(|(pid, mut threads)| {
                threads.sort_unstable_by(|a, b| b.cmp(a));
                threads.truncate(MAX_BUSY);
                let mut tids: Vec<u32> = threads.into_iter().map(|(_, tid)| tid).collect();
                tids.sort_unstable();
                (pid, tids)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_that_ran_of_late_are_told_but_for_main_threads() {
        let mut busy = Busy::default();
        let mut interval = |ran: &[(u32, u64)]| {
            let threads = ran.iter().map(|(tid, ns)| (*tid, tid / 100 * 100, *ns));
            busy.interval(threads, 1_000)
        };
        let first = interval(&[(100, 900), (101, 50), (102, 49), (201, 300)]);
        assert_eq!(first, BTreeMap::from([(100, vec![101]), (200, vec![201])]));
        // What ran before is no news.
        let second = interval(&[(100, 1_800), (101, 60), (102, 149), (201, 20)]);
        assert_eq!(second, BTreeMap::from([(100, vec![102])]));
        let many: Vec<(u32, u64)> = (301..351).map(|tid| (tid, u64::from(tid))).collect();
        assert_eq!(interval(&many)[&300], (319..351).collect::<Vec<_>>());
    }
}
