//! Memory and descriptors of single processes.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use super::{
    SECOND, largest_first, own,
    pace::Pace,
    text::{kilobytes, value},
};
use crate::{
    env::{process, read_text},
    record::{Record, fact::ProcessSample},
    time::KtimeNs,
};

/// The largest processes are read in each round.
const EACH_ROUND: usize = 32;
/// Of the others each is read once in so many rounds; listing descriptors is that rare for all.
const TURNS: u64 = 10;
/// Descriptors that are counted one by one, on kernels that do not tell how many there are.
const MOST_DESCRIPTORS: usize = 4096;
/// A process's proportional share is read no more often, nanoseconds; nor so that it takes more than one part in so many of the time.
const PSS_EVERY: u64 = 30 * SECOND;
const PSS_REST_PER_COST: u64 = 10_000;
/// The kernel walks all page tables for it: not for processes with more resident bytes than this.
const PSS_MAX_RESIDENT: u64 = 4 << 30;
/// A process for which that took longer, in nanoseconds, is not asked again.
const PSS_TOO_DEAR: u64 = 20_000_000;
/// In the last round all are asked once more, until so much time has gone, nanoseconds.
const PSS_AT_THE_END: u64 = 40_000_000;

/// When which process was last asked for what is dear.
pub(super) struct Processes {
    pace: Pace,
    rounds: u64,
    /// The next round is the first or the last one.
    edge: bool,
    /// It is the last one.
    ends: bool,
    /// Whether the size of /proc/PID/fd is the number of descriptors: since Linux 6.2.
    fd_size_counts: bool,
    pss: Pss,
    /// CPUs that each process may use, as told last.
    allowed: BTreeMap<u32, String>,
}

impl Default for Processes {
    fn default() -> Self {
        Self {
            pace: Pace::every(SECOND),
            rounds: 0,
            edge: true,
            ends: false,
            // We ourselves always have some open.
            fd_size_counts: fs::metadata("/proc/self/fd").is_ok_and(|fd| fd.len() > 0),
            pss: Pss::default(),
            allowed: BTreeMap::new(),
        }
    }
}

impl Processes {
    /// Makes the next round due, as the last one.
    pub(super) fn now(&mut self) {
        self.pace.now();
        self.edge = true;
        self.ends = true;
    }

    pub(super) fn poll(
        &mut self,
        at: KtimeNs,
        resident: &BTreeMap<u32, u64>,
        out: &mut Vec<Record>,
    ) {
        if !self.pace.is_due(at) {
            return;
        }
        let round = self.rounds;
        self.rounds += 1;
        let edge = std::mem::take(&mut self.edge);
        let order = largest_first(resident);
        // Proportional shares are paced by themselves: one process at a time.
        let mut pss = BTreeMap::new();
        pss.extend(self.pss.read(at, &order, resident));
        if std::mem::take(&mut self.ends) {
            pss.extend(self.pss.read_again(at, &order, resident));
        }
        let fd_size_counts = self.fd_size_counts;
        let allowed = &mut self.allowed;
        allowed.retain(|pid, _| resident.contains_key(pid));
        self.pace.round(at, || {
            for (rank, pid) in order.into_iter().enumerate() {
                // By number, so that the turn does not depend on a size that changes.
                let has_turn = u64::from(pid) % TURNS == round % TURNS;
                if rank >= EACH_ROUND && !has_turn {
                    continue;
                }
                let status = |dir: &Path| {
                    let status = read_text(&dir.join("status"), 16 << 10).ok()?;
                    Some((decode(&status)?, status))
                };
                let mut dir = PathBuf::from(format!("/proc/{pid}"));
                let mut seen = status(&dir);
                if seen.is_none() {
                    dir = process::shared_dir(pid);
                    seen = status(&dir);
                }
                let Some((mut sample, status)) = seen else {
                    continue;
                };
                // When it was read, which on a busy host is later than when the round began.
                sample.at = own::now();
                sample.pid = pid;
                sample.pss_bytes = pss.get(&pid).copied();
                sample.descriptors = if fd_size_counts {
                    descriptors(&dir)
                } else if has_turn || edge {
                    listed_descriptors(&dir)
                } else {
                    None
                };
                out.push(Record::ProcessMemory(sample));
                if let Some(cpus) = value(&status, "Cpus_allowed_list:")
                    && allowed.get(&pid).is_none_or(|told| told != cpus)
                {
                    allowed.insert(pid, cpus.to_owned());
                    let cpus = cpus.to_owned();
                    out.push(Record::Affinity { pid, cpus });
                }
            }
        });
    }
}

/// Reads proportional shares (smaps_rollup, Documentation/filesystems/proc.rst).
struct Pss {
    pace: Pace,
    /// When each process was asked last, and how long that took, nanoseconds.
    last: BTreeMap<u32, (KtimeNs, u64)>,
    too_dear: BTreeSet<u32>,
}

impl Default for Pss {
    fn default() -> Self {
        Self {
            pace: Pace::sparing(SECOND),
            last: BTreeMap::new(),
            too_dear: BTreeSet::new(),
        }
    }
}

impl Pss {
    /// Of the largest processes the one whose turn it is, and its share in bytes.
    fn read(
        &mut self,
        at: KtimeNs,
        order: &[u32],
        resident: &BTreeMap<u32, u64>,
    ) -> Option<(u32, u64)> {
        self.last.retain(|pid, _| resident.contains_key(pid));
        self.too_dear.retain(|pid| resident.contains_key(pid));
        let pid = self.whose_turn(at, order, resident)?;
        let (bytes, took) = self.pace.round(at, || share(pid))?;
        self.note(at, pid, took);
        Some((pid, bytes?))
    }

    /// Those that were asked before, once more: what became of them in the watch. The largest come first.
    fn read_again(
        &mut self,
        at: KtimeNs,
        order: &[u32],
        resident: &BTreeMap<u32, u64>,
    ) -> BTreeMap<u32, u64> {
        let mut out = BTreeMap::new();
        let mut spent = 0;
        for pid in order.iter().take(EACH_ROUND) {
            let before = self.last.get(pid).is_some_and(|(last, _)| *last < at);
            if before && self.may_ask(*pid, resident) && spent < PSS_AT_THE_END {
                let (bytes, took) = share(*pid);
                self.note(at, *pid, took);
                spent += took;
                out.extend(bytes.map(|bytes| (*pid, bytes)));
            }
        }
        out
    }

    fn note(&mut self, at: KtimeNs, pid: u32, took: u64) {
        self.last.insert(pid, (at, took));
        if took > PSS_TOO_DEAR {
            self.too_dear.insert(pid);
        }
    }

    fn may_ask(&self, pid: u32, resident: &BTreeMap<u32, u64>) -> bool {
        resident.get(&pid).is_some_and(|b| *b < PSS_MAX_RESIDENT) && !self.too_dear.contains(&pid)
    }

    fn whose_turn(&self, at: KtimeNs, order: &[u32], resident: &BTreeMap<u32, u64>) -> Option<u32> {
        order.iter().take(EACH_ROUND).copied().find(|pid| {
            let rested = |(last, took): &(KtimeNs, u64)| {
                at.since(*last) >= PSS_EVERY.max(took.saturating_mul(PSS_REST_PER_COST))
            };
            self.last.get(pid).is_none_or(rested) && self.may_ask(*pid, resident)
        })
    }
}

/// A process's proportional share, bytes, and how long the kernel took to tell, nanoseconds.
fn share(pid: u32) -> (Option<u64>, u64) {
    let before = own::now();
    let text = read_text(&process::shared(pid, "smaps_rollup"), 16 << 10).ok();
    let took = own::now().since(before);
    (text.and_then(|text| kilobytes(&text, "Pss:")), took)
}

/// Decodes /proc/PID/status. A process that has ended and was not waited for has no memory.
fn decode(status: &str) -> Option<ProcessSample> {
    Some(ProcessSample {
        anon_bytes: kilobytes(status, "RssAnon:")?,
        file_bytes: kilobytes(status, "RssFile:")?,
        shmem_bytes: kilobytes(status, "RssShmem:")?,
        // Missing in kernels built without swap.
        swap_bytes: kilobytes(status, "VmSwap:").unwrap_or(0),
        ..ProcessSample::default()
    })
}

fn descriptors(dir: &Path) -> Option<u32> {
    let size = fs::metadata(dir.join("fd")).ok()?.len();
    u32::try_from(size).ok()
}

/// Counts the entries of /proc/PID/fd; `None` when there are too many for that.
fn listed_descriptors(dir: &Path) -> Option<u32> {
    let count = fs::read_dir(dir.join("fd"))
        .ok()?
        .take(MOST_DESCRIPTORS + 1)
        .count();
    (count <= MOST_DESCRIPTORS).then_some(count as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_gives_bytes() {
        let status = "Name:\tcat\nVmRSS:\t    1616 kB\nRssAnon:\t     112 kB\nRssFile:\t    1504 kB\nRssShmem:\t       8 kB\nVmSwap:\t       4 kB\n";
        let sample = decode(status).expect("a sample");
        assert_eq!(
            [
                sample.anon_bytes,
                sample.file_bytes,
                sample.shmem_bytes,
                sample.swap_bytes
            ],
            [112 << 10, 1504 << 10, 8 << 10, 4 << 10]
        );
        for bad in ["", "Name:\tzombie\nState:\tZ (zombie)\n", "RssAnon: x kB"] {
            assert_eq!(decode(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn both_ways_of_counting_descriptors_agree() {
        let dir = Path::new("/proc/self");
        let open = tempfile::tempfile().expect("a file");
        let listed = listed_descriptors(dir).expect("our own descriptors");
        drop(open);
        assert!(listed > 3);
        // Tests beside this one open and close files meanwhile.
        if Processes::default().fd_size_counts {
            let counted = descriptors(dir).expect("our own descriptors");
            assert!(counted.abs_diff(listed) < 64, "{counted} {listed}");
        }
    }

    #[test]
    fn the_largest_are_read_each_round_and_the_others_in_turn() {
        // Only our own process is there; the others have numbers beyond the largest.
        let own = std::process::id();
        let mut resident: BTreeMap<u32, u64> =
            (5_000_000..5_000_100).map(|pid| (pid, 1 << 30)).collect();
        let rounds = |resident: &BTreeMap<u32, u64>| {
            let mut processes = Processes::default();
            let mut out = Vec::new();
            for round in 0..2 * TURNS {
                processes.now();
                processes.poll(KtimeNs(round * SECOND), resident, &mut out);
            }
            let memory = |record: &&Record| matches!(record, Record::ProcessMemory(_));
            out.iter().filter(memory).count() as u64
        };
        resident.insert(own, 1 << 20);
        assert_eq!(rounds(&resident), 2, "as one of the small ones");
        resident.insert(own, 2 << 30);
        assert_eq!(rounds(&resident), 2 * TURNS, "as the largest one");
    }

    #[test]
    fn the_cpus_that_a_process_may_use_are_told_once_and_when_they_change() {
        let own = std::process::id();
        let resident = BTreeMap::from([(own, 1 << 20)]);
        let mut processes = Processes::default();
        let told = |processes: &mut Processes, round| {
            let mut out = Vec::new();
            processes.now();
            processes.poll(KtimeNs(round * SECOND), &resident, &mut out);
            out.into_iter().find_map(|record| match record {
                Record::Affinity { pid, cpus } => Some((pid, cpus)),
                _ => None,
            })
        };
        let (pid, cpus) = told(&mut processes, 1).expect("the first time");
        assert!(
            pid == own && cpus.starts_with(|c: char| c.is_ascii_digit()),
            "{cpus}"
        );
        assert_eq!(told(&mut processes, 2), None);
        processes.allowed.insert(own, "0-4711".to_owned());
        assert_eq!(told(&mut processes, 3), Some((own, cpus)));
    }

    #[test]
    fn shares_are_read_seldom_and_only_of_processes_that_are_not_huge() {
        let at = |s: u64| KtimeNs(s * SECOND);
        let resident = BTreeMap::from([(1, 5 << 30), (2, 3 << 30), (3, 1 << 30)]);
        let order = largest_first(&resident);
        assert_eq!(order, [1, 2, 3]);
        let mut pss = Pss::default();
        let turn = |pss: &Pss, s| pss.whose_turn(at(s), &order, &resident);
        assert_eq!(turn(&pss, 1), Some(2));
        pss.note(at(1), 2, 3_000_000);
        assert_eq!(turn(&pss, 2), Some(3));
        pss.too_dear.insert(3);
        assert_eq!(turn(&pss, 2), None);
        assert_eq!(turn(&pss, 31), Some(2));
        pss.note(at(31), 2, 7_000_000);
        assert_eq!(turn(&pss, 100), None, "the kernel walked for 7 ms");
        assert_eq!(turn(&pss, 101), Some(2));
    }

    #[test]
    fn a_share_is_read_again_at_the_end_however_short_the_watch() {
        let own = std::process::id();
        let resident = BTreeMap::from([(own, 1 << 20)]);
        let mut processes = Processes::default();
        let mut out = Vec::new();
        for (round, last) in [(1, false), (2, false), (3, true)] {
            if last {
                processes.now();
            }
            processes.poll(KtimeNs(round * SECOND), &resident, &mut out);
        }
        let shares: Vec<bool> = out
            .iter()
            .filter_map(|record| match record {
                Record::ProcessMemory(sample) => Some(sample.pss_bytes.is_some()),
                _ => None,
            })
            .collect();
        assert_eq!(shares, [true, false, true]);
    }

    #[test]
    fn our_own_share_is_no_more_than_what_is_resident() {
        let own = std::process::id();
        let resident = BTreeMap::from([(own, 1 << 20)]);
        let (pid, bytes) = Pss::default()
            .read(KtimeNs(1), &[own], &resident)
            .expect("our own share");
        assert_eq!(pid, own);
        assert!(bytes > 100 << 10, "{bytes}");
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_decoded_or_refused(text in "((RssAnon:|RssFile:|RssShmem:|VmSwap:)\t[0-9]{0,22} kB\\n|.*)*") {
            let _ = decode(&text);
        }
    }
}
