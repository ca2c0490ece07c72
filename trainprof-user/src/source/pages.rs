//! What became of pages that sampled faults brought in: kept, or given back.
//!
//! `/proc/PID/pagemap` (Documentation/admin-guide/mm/pagemap.rst) says of a single page whether it is there, for one
//! read of eight bytes. A page that is there each time it is looked at, ever more seldom, is memory that is kept; memory
//! that is taken and given back is soon found to be gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    os::unix::fs::FileExt,
};

use super::huge::Huge;
use crate::{
    env::process,
    record::{
        Record,
        fact::{PageKind, PagesGone},
    },
    time::KtimeNs,
};

/// Pages that are looked at again.
const MAX_PAGES: usize = 4096;
/// Looks at one time.
const MAX_LOOKS: usize = 512;
/// Open files of processes.
const MAX_PROCESSES: usize = 64;
/// A page is first looked at again after this long; after that when its age has grown by a third.
const FIRST_LOOK_NS: u64 = 700_000_000;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
const FILE_OR_SHARED: u64 = 1 << 61;

/// Whether a page is there, and what kind it is.
fn decode(entry: u64) -> Option<PageKind> {
    (entry & (PRESENT | SWAPPED) != 0).then_some(if entry & FILE_OR_SHARED != 0 {
        PageKind::Shared
    } else {
        PageKind::Anonymous
    })
}

/// A page that is there so far.
#[derive(Clone, Copy, Debug)]
struct Page {
    number: u32,
    pid: u32,
    address: u64,
    since: KtimeNs,
    next: KtimeNs,
}

/// What a look at a page shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    pub kind: PageKind,
    /// Bytes of the huge page that it is part of; `None`: an ordinary page, as far as the kernel tells.
    pub huge: Option<u64>,
}

/// See the module.
pub struct Pages {
    page_bytes: u64,
    huge: Huge,
    pages: Vec<Page>,
    files: BTreeMap<u32, Option<File>>,
}

impl Default for Pages {
    fn default() -> Self {
        Self {
            page_bytes: page_bytes(),
            huge: Huge::default(),
            pages: Vec::new(),
            files: BTreeMap::new(),
        }
    }
}

/// Bytes of a page on this host.
pub fn page_bytes() -> u64 {
    // SAFETY: sysconf has no preconditions.
    u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

impl Pages {
    /// Looks at the page of a fault for the first time, and follows its fate if it is there. `copied`: the fault was a
    /// write to a shared page.
    pub fn add(&mut self, number: u32, pid: u32, address: u64, copied: bool, at: KtimeNs) -> Shown {
        let Some(kind) = self.look(pid, address) else {
            return Shown {
                kind: PageKind::Unknown,
                huge: None,
            };
        };
        let start = address / self.page_bytes * self.page_bytes;
        let file = self.files.get(&pid).and_then(Option::as_ref);
        let huge = file.and_then(|file| self.huge.at(file, start, self.page_bytes));
        if self.pages.len() < MAX_PAGES {
            self.pages.push(Page {
                number,
                pid,
                address,
                since: at,
                next: KtimeNs(at.0 + FIRST_LOOK_NS),
            });
        }
        let kind = match kind {
            PageKind::Anonymous if copied => PageKind::CopyOnWrite,
            kind => kind,
        };
        Shown { kind, huge }
    }

    /// Looks again at pages whose turn it is; records those that are gone.
    pub fn look_again(&mut self, now: KtimeNs, alive: &BTreeSet<u32>, out: &mut Vec<Record>) {
        self.files.retain(|pid, _| alive.contains(pid));
        // What becomes of memory when its process ends says nothing about who keeps it.
        self.pages.retain(|page| alive.contains(&page.pid));
        let mut due: Vec<usize> = (0..self.pages.len())
            .filter(|at| self.pages[*at].next <= now)
            .collect();
        due.sort_unstable_by_key(|at| self.pages[*at].next);
        due.truncate(MAX_LOOKS);
        let mut gone = Vec::new();
        for at in due {
            let page = self.pages[at];
            if self.look(page.pid, page.address).is_some() {
                let age = now.since(page.since);
                self.pages[at].next = KtimeNs(now.0 + (age / 3).max(FIRST_LOOK_NS));
            } else if self.files.get(&page.pid).is_some_and(Option::is_some) {
                gone.push(page.number);
            }
        }
        if !gone.is_empty() {
            gone.sort_unstable();
            self.pages
                .retain(|page| gone.binary_search(&page.number).is_err());
            out.push(Record::PagesGone(PagesGone {
                at: now,
                faults: gone,
            }));
        }
        // The oldest ones are kept by all that can be told.
        if self.pages.len() >= MAX_PAGES {
            self.pages.drain(..MAX_PAGES / 4);
        }
    }

    /// A process has another address space now.
    pub fn executed(&mut self, pid: u32) {
        self.files.remove(&pid);
        self.pages.retain(|page| page.pid != pid);
    }

    fn look(&mut self, pid: u32, address: u64) -> Option<PageKind> {
        if !self.files.contains_key(&pid) {
            if self.files.len() >= MAX_PROCESSES {
                self.files.clear();
            }
            let file = File::open(process::shared(pid, "pagemap")).ok();
            self.files.insert(pid, file);
        }
        let file = self.files.get(&pid)?.as_ref()?;
        let mut entry = [0_u8; 8];
        file.read_exact_at(&mut entry, address / self.page_bytes * 8)
            .ok()?;
        decode(u64::from_ne_bytes(entry))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: usize, flags: i32) -> *mut u8 {
        // SAFETY: a new mapping.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_ANONYMOUS | flags,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        at.cast()
    }

    #[test]
    fn pages_of_our_own_are_told_apart_and_their_end_is_noticed() {
        let (own, bytes) = (std::process::id(), page_bytes() as usize);
        let private = map(4 * bytes, libc::MAP_PRIVATE);
        let shared = map(bytes, libc::MAP_SHARED);
        // SAFETY: mapped above.
        unsafe {
            private.write(1);
            private.add(bytes).write(1);
            shared.write(1);
        }
        let mut pages = Pages::default();
        let at = |n: usize| private as u64 + (n * bytes) as u64 + 7;
        let now = KtimeNs(1);
        let mut add = |number, at, copied| pages.add(number, own, at, copied, now).kind;
        assert_eq!(add(1, at(0), false), PageKind::Anonymous);
        assert_eq!(add(2, at(1), true), PageKind::CopyOnWrite);
        assert_eq!(add(3, at(2), false), PageKind::Unknown, "never touched");
        assert_eq!(add(4, shared as u64, false), PageKind::Shared);
        let alive = BTreeSet::from([own]);
        let mut out = Vec::new();
        pages.look_again(KtimeNs(2_000_000_000), &alive, &mut out);
        assert_eq!(out, []);
        // SAFETY: mapped above, and not used any more.
        unsafe { libc::munmap(private.cast(), 4 * bytes) };
        pages.look_again(KtimeNs(2_000_000_001), &alive, &mut out);
        assert_eq!(out, [], "it was just looked at");
        pages.look_again(KtimeNs(9_000_000_000), &alive, &mut out);
        assert_eq!(
            out,
            [Record::PagesGone(PagesGone {
                at: KtimeNs(9_000_000_000),
                faults: vec![1, 2],
            })]
        );
        // SAFETY: as above.
        unsafe { libc::munmap(shared.cast(), bytes) };
        pages.look_again(KtimeNs(90_000_000_000), &BTreeSet::new(), &mut out);
        assert_eq!(out.len(), 1, "its process is gone, which says nothing");
    }
}
