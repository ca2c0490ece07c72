//! What a window saw, out of the maps and told.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::{
    alloc::{
        HALVES, HIT_COUNTERS, HIT_EMULATED, HIT_RETURN, HIT_STEPPED, LOST_ADDRESS, LOST_CELL,
        QUICK_NS, RUN_NS, RUNS_TIMED, WindowState,
    },
    hist::SIZE_BUCKETS,
};

use super::{
    super::{
        CallSum, Closed, Frame, LifetimeSum, Maps, Notice, StackSum, chosen::Mapping, sites::Asked,
    },
    Server,
};
use crate::kernel::wire::Packed;

/// Sums told in one message: it stays far below what a message may hold.
const CALLS_PER_MESSAGE: usize = 64;
const STACKS_PER_MESSAGE: usize = 12;
/// Call sites told of one window, and frames of each.
const MOST_STACKS: usize = 96;
const MOST_FRAMES: usize = 24;

impl Server<'_> {
    pub(super) fn count_hits(&mut self, closed: &mut Closed) {
        let now = self.maps.all_hits();
        let since = |n: u32| now[n as usize].saturating_sub(self.hits[n as usize]);
        closed.emulated_hits = since(HIT_EMULATED);
        closed.stepped_hits = since(HIT_STEPPED);
        closed.return_hits = since(HIT_RETURN);
        closed.lost = self.lost(&now);
        closed.run_ns = mean_run_ns(&self.hits, &now);
        self.hits = now;
    }

    /// Addresses that could not be remembered, and cells that had no room, since hits were counted last.
    pub(super) fn lost(&self, now: &[u64; HIT_COUNTERS]) -> u64 {
        let since = |n: u32| now[n as usize].saturating_sub(self.hits[n as usize]);
        since(LOST_ADDRESS) + since(LOST_CELL)
    }

    /// Forgets all that was seen. No window is open.
    pub(super) fn clear(&mut self) {
        let _ = self.maps.calls.drain();
        let _ = self.maps.callers.drain();
        let _ = self.maps.pending.drain();
        let _ = self.maps.live.drain();
        for half in 0..HALVES as u32 {
            let _ = self.drain_lifetimes(half);
        }
        let _ = self.maps.state.set(0, Packed(WindowState::default()), 0);
        while self.maps.full.next().is_some() {}
        self.clear_stacks();
        self.hits = self.maps.all_hits();
    }

    /// Makes room for other stacks than those that were seen; what is told next still needs those of its calls.
    fn clear_stacks(&mut self) {
        let ids: Vec<u32> = self.maps.stacks.stack_ids().flatten().collect();
        let callers = self.maps.callers.read().unwrap_or_default();
        let needed: BTreeSet<i32> = callers.iter().map(|(key, _)| key.stack).collect();
        for id in ids {
            if !needed.contains(&(id as i32)) {
                let _ = self.maps.stacks.remove(&id);
            }
        }
    }

    /// Tells of calls and where they came from, by one half of the sums. Gives what each function asked for.
    ///
    /// `mapped`: what a process has mapped.
    pub(super) fn tell<'m>(
        &mut self,
        number: u32,
        half: u32,
        mapped: impl Fn(u32) -> Option<&'m Vec<Mapping>>,
    ) -> Asked {
        let mut calls: Vec<CallSum> = self
            .maps
            .calls
            .take_where(|key| u32::from(key.half) == half)
            .unwrap_or_default()
            .into_iter()
            .map(|(key, cell)| CallSum {
                pid: key.tgid,
                tid: key.tid,
                function: key.function as u8,
                count: cell.count,
                bytes: cell.bytes,
                sizes: filled(&cell.size),
            })
            .collect();
        calls.sort_by_key(|sum| (sum.tid, sum.function));
        for part in calls.chunks(CALLS_PER_MESSAGE) {
            self.send(&Notice::Calls {
                number,
                calls: part.to_vec(),
            });
        }
        let pids: BTreeMap<u32, u32> = calls.iter().map(|sum| (sum.tid, sum.pid)).collect();
        let process = |tid: u32| {
            let pid = *pids.get(&tid)?;
            Some((pid, mapped(pid)?))
        };
        for part in self.stacks(half, process).chunks(STACKS_PER_MESSAGE) {
            self.send(&Notice::Stacks {
                number,
                stacks: part.to_vec(),
            });
        }
        let mut asked = Asked::new();
        for sum in &calls {
            *asked.entry(sum.function).or_default() += sum.bytes;
        }
        asked
    }

    /// Sampled stacks, the most frequent first, those of all threads of a process together.
    ///
    /// `process`: of a thread, with what it has mapped.
    fn stacks<'m>(
        &mut self,
        half: u32,
        process: impl Fn(u32) -> Option<(u32, &'m Vec<Mapping>)>,
    ) -> Vec<StackSum> {
        let mut sums = BTreeMap::<(u32, u8, Vec<Frame>), (u64, u64)>::new();
        let callers = self.maps.callers.take_where(|key| key.half == half);
        for (key, cell) in callers.unwrap_or_default() {
            let mut addresses = vec![key.caller];
            if let Some(stack) = u32::try_from(key.stack)
                .ok()
                .and_then(|id| self.maps.stacks.get(&id, 0).ok())
            {
                // The first is the probed function itself; some kernels put its caller next, some leave it out.
                let rest = stack.frames().iter().skip(1).map(|frame| frame.ip);
                addresses.extend(
                    rest.skip_while(|ip| *ip == key.caller)
                        .take(MOST_FRAMES - 1),
                );
            }
            let (pid, frames) = process(key.tid)
                .map(|(pid, mappings)| (pid, frames(&addresses, mappings)))
                .unwrap_or_default();
            let sum = sums.entry((pid, key.function as u8, frames)).or_default();
            sum.0 += cell.count;
            sum.1 += cell.bytes;
        }
        self.clear_stacks();
        let mut out: Vec<StackSum> = sums
            .into_iter()
            .map(|((pid, function, frames), (count, bytes))| StackSum {
                pid,
                function,
                count,
                bytes,
                frames,
            })
            .collect();
        out.sort_by_key(|sum| std::cmp::Reverse(sum.count));
        out.truncate(MOST_STACKS);
        out
    }

    /// Lifetimes in a window that ended at `to`: what was allocated in its last moments and is there still could not
    /// have been seen to go.
    pub(super) fn lifetimes(&mut self, to: u64) -> LifetimeSum {
        let mut sum = self.drain_lifetimes(0);
        sum.one_in = self.address_mask + 1;
        for (_, memory) in self.maps.live.drain().unwrap_or_default() {
            if memory.at + QUICK_NS > to {
                sum.tracked = sum.tracked.saturating_sub(1);
                sum.tracked_bytes = sum.tracked_bytes.saturating_sub(memory.size);
            }
        }
        sum
    }

    /// Takes the sums of lifetimes out, of the half that is not added to.
    pub(super) fn drain_lifetimes(&mut self, half: u32) -> LifetimeSum {
        let mut sum = LifetimeSum {
            one_in: 1,
            ..LifetimeSum::default()
        };
        let Ok(per_cpu) = self.maps.lifetimes.get(&half, 0) else {
            return sum;
        };
        let mut ns = [0_u32; SIZE_BUCKETS];
        for Packed(all) in per_cpu.iter() {
            sum.tracked += all.tracked;
            sum.tracked_bytes += all.tracked_bytes;
            sum.freed += all.freed;
            sum.freed_bytes += all.freed_bytes;
            sum.quick += all.quick;
            sum.quick_bytes += all.quick_bytes;
            ns.iter_mut().zip(all.ns).for_each(|(a, b)| *a += b);
        }
        sum.ns = filled(&ns);
        // SAFETY: integers, for which zero is a valid value.
        let nothing = Packed(unsafe { std::mem::zeroed() });
        let zeros = aya::maps::PerCpuValues::try_from(vec![nothing; per_cpu.len()]);
        if let Ok(zeros) = zeros {
            let _ = self.maps.lifetimes.set(half, zeros, 0);
        }
        sum
    }
}

impl Maps {
    pub(super) fn all_hits(&self) -> [u64; HIT_COUNTERS] {
        std::array::from_fn(|n| {
            self.hits
                .get(&(n as u32), 0)
                .map_or(0, |per_cpu| per_cpu.iter().sum())
        })
    }
}

/// Mean run time of the program at entries between two looks at the counters, nanoseconds.
pub(super) fn mean_run_ns(
    before: &[u64; HIT_COUNTERS],
    after: &[u64; HIT_COUNTERS],
) -> Option<f64> {
    let since = |n: u32| after[n as usize].saturating_sub(before[n as usize]) as f64;
    (since(RUNS_TIMED) > 0.0).then(|| since(RUN_NS) / since(RUNS_TIMED))
}

fn filled(counts: &[u32]) -> Vec<(u8, u32)> {
    counts
        .iter()
        .enumerate()
        .filter(|(_, n)| **n > 0)
        .map(|(bucket, n)| (bucket as u8, *n))
        .collect()
}

/// Frames of addresses, as far as they lead through code: without frame pointers the rest is chance.
fn frames(addresses: &[u64], mappings: &[Mapping]) -> Vec<Frame> {
    let mut out = Vec::new();
    for (n, address) in addresses.iter().enumerate() {
        let mapping = mappings
            .iter()
            .find(|m| m.executable && m.start <= *address && *address < m.end);
        if mapping.is_none() && n > 0 {
            break;
        }
        out.push(Frame {
            address: *address,
            file: mapping.map(|m| (m.path.clone(), address - m.start + m.offset)),
        });
    }
    out
}
