//! Loops that wait for somebody else on the CPU, told by the instruction that they have for that: also in code without a name, which
//! a library wrote at run time (oneDNN's barriers).

use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt};

use crate::{
    arch::{SPIN_BYTES, spins},
    env::process,
};

/// Addresses that are remembered; when there are more, all are forgotten.
const MOST: usize = 16_384;

/// Memories that are open at once, each with a descriptor.
const MOST_OPEN: usize = 64;

/// What is known of addresses that samples hit.
#[derive(Default)]
pub(super) struct Spins {
    seen: BTreeMap<(u32, u64), bool>,
    /// Memory of processes (proc_pid_mem(5)); `None` where it cannot be read.
    memories: BTreeMap<u32, Option<File>>,
}

impl Spins {
    /// Whether such a loop is around an address of a process; false where its memory cannot be read.
    pub(super) fn at(&mut self, pid: u32, ip: u64) -> bool {
        if let Some(known) = self.seen.get(&(pid, ip)) {
            return *known;
        }
        if self.seen.len() >= MOST {
            self.seen.clear();
        }
        if self.memories.len() >= MOST_OPEN && !self.memories.contains_key(&pid) {
            self.memories.clear();
        }
        let memory = self
            .memories
            .entry(pid)
            .or_insert_with(|| File::open(process::shared(pid, "mem")).ok());
        let found = memory
            .as_ref()
            .is_some_and(|memory| is_loop(memory, ip).unwrap_or(false));
        self.seen.insert((pid, ip), found);
        found
    }

    /// A process executed another program, or is gone.
    pub(super) fn forget(&mut self, pid: u32) {
        self.memories.remove(&pid);
        self.seen.retain(|(of, _), _| *of != pid);
    }

    pub(super) fn retain(&mut self, is_alive: impl Fn(u32) -> bool) {
        self.memories.retain(|pid, _| is_alive(*pid));
        self.seen.retain(|(pid, _), _| is_alive(*pid));
    }
}

fn is_loop(memory: &File, ip: u64) -> Option<bool> {
    let mut around = [0; 2 * SPIN_BYTES];
    let from = ip.checked_sub(SPIN_BYTES as u64)?;
    memory.read_exact_at(&mut around, from).ok()?;
    Some(spins(&around))
}

#[cfg(test)]
mod tests {
    use std::hint::{black_box, spin_loop};

    use super::*;

    #[inline(never)]
    fn waits(until: &std::sync::atomic::AtomicBool) {
        while !until.load(std::sync::atomic::Ordering::Relaxed) {
            spin_loop();
        }
    }

    #[inline(never)]
    fn computes(n: u64) -> u64 {
        (0..black_box(n)).fold(1, |all, n| all * 3 + black_box(n))
    }

    #[test]
    fn a_loop_that_spins_is_told_and_one_that_computes_is_not() {
        waits(&std::sync::atomic::AtomicBool::new(true));
        computes(3);
        let own = std::process::id();
        let mut spins = Spins::default();
        let mut any = |at: u64| (at..at + 8).any(|ip| spins.at(own, ip));
        assert!(any(waits as *const () as u64));
        assert!(!any(computes as *const () as u64));
        assert!(!any(16), "nothing is mapped there");
    }
}
