//! Resident memory: of a process, and of all that were there at a time.

use crate::time::KtimeNs;

/// Resident memory, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rss {
    pub first: u64,
    pub last: u64,
    pub max: u64,
}

impl Rss {
    /// Of a process that was looked at for the first time.
    pub(super) fn new(bytes: u64) -> Self {
        Self {
            first: bytes,
            last: bytes,
            max: bytes,
        }
    }

    pub(super) fn add(&mut self, bytes: u64) {
        self.last = bytes;
        self.max = self.max.max(bytes);
    }
}

/// The sum over all processes that were there at each look.
#[derive(Clone, Copy, Debug, Default)]
pub struct JobRss {
    /// The first look, and the last one.
    looks: Option<(KtimeNs, KtimeNs)>,
    rss: Rss,
}

impl JobRss {
    /// One process of a look; all of them are told with the same time.
    pub(super) fn add(&mut self, at: KtimeNs, bytes: u64) {
        let (first, last) = *self.looks.get_or_insert((at, at));
        if at != last {
            self.looks = Some((first, at));
            self.rss.last = 0;
        }
        self.rss.last += bytes;
        self.rss.max = self.rss.max.max(self.rss.last);
        if at == first {
            self.rss.first = self.rss.last;
        }
    }

    /// `None`: nobody was looked at.
    pub fn sums(&self) -> Option<Rss> {
        self.looks.map(|_| self.rss)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_count_together_that_were_there_at_a_time() {
        let mut job = JobRss::default();
        assert_eq!(job.sums(), None);
        // A trainer, and workers of which each lives for one look; at one two do.
        for (at, sizes) in [
            (1, &[100, 7][..]),
            (2, &[100, 7, 7]),
            (3, &[100, 7]),
            (4, &[90]),
        ] {
            for bytes in sizes {
                job.add(KtimeNs(at), *bytes);
            }
        }
        let sums = job.sums().expect("sums");
        assert_eq!((sums.first, sums.last, sums.max), (107, 90, 114));
    }
}
