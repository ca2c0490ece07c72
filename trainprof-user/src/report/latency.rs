//! How long opens and reads of files took: of all, on one file system, of one process; and, more coarsely, in some file sets.

use std::collections::{BTreeMap, BTreeSet};

use trainprof_common::op::{Class, Op};

use super::{
    io::{Group, group, round},
    model::{Latencies, Quantiles},
};
use crate::session::{Coarse, Histogram, Session, Thread};

/// Device number, operation and class, as the session has them.
type Of = (u32, u8, u8);

/// Which histograms are of files.
pub struct Timed<'s> {
    session: &'s Session,
    /// On tmpfs the device tells shared memory from files.
    devices: BTreeSet<u32>,
}

impl<'s> Timed<'s> {
    pub fn of(session: &'s Session) -> Self {
        let files = session
            .files
            .ops
            .keys()
            .filter(|key| group(session, key) == Group::File);
        Self {
            session,
            devices: files.map(|key| key.dev).collect(),
        }
    }

    /// Histograms of all operations on files, by operation.
    pub fn by_operation(&self) -> BTreeMap<u8, Histogram> {
        self.sum(self.session.files.histograms.iter(), |_| true)
    }

    /// Of the whole job.
    pub fn all(&self) -> Latencies {
        latencies(&self.by_operation())
    }

    /// On these devices.
    pub fn on(&self, devices: &BTreeSet<u32>) -> Latencies {
        let all = self.session.files.histograms.iter();
        latencies(&self.sum(all, |dev| devices.contains(&dev)))
    }

    /// Of one process.
    pub fn of_process(&self, pid: u32) -> Latencies {
        let its = self
            .session
            .files
            .by_process
            .range((pid, (0, 0, 0))..=(pid, (u32::MAX, u8::MAX, u8::MAX)));
        latencies(&self.sum(its.map(|((_, of), histogram)| (of, histogram)), |_| true))
    }

    /// Of one thread.
    pub fn of_thread(&self, thread: &Thread) -> Latencies {
        let mut sum = Coarsely::default();
        let took = thread.files.took.iter();
        for ((_, op, _), latencies) in took.filter(|(of, _)| self.is_of_files(of)) {
            sum.add(Op::try_from(*op).unwrap_or(Op::None), latencies);
        }
        sum.latencies()
    }

    fn sum<'h>(
        &self,
        histograms: impl Iterator<Item = (&'h Of, &'h Histogram)>,
        is_on: impl Fn(u32) -> bool,
    ) -> BTreeMap<u8, Histogram> {
        let mut out = BTreeMap::<u8, Histogram>::new();
        for (of, histogram) in histograms {
            let (dev, op, _) = of;
            if self.is_of_files(of) && is_on(*dev) {
                out.entry(*op).or_default().add(histogram);
            }
        }
        out
    }

    fn is_of_files(&self, (dev, op, class): &Of) -> bool {
        match Class::try_from(*class).unwrap_or(Class::Unknown) {
            // What was closed there may have been anything: `io::Group::Untold`.
            Class::Unknown => *op != Op::Close as u8,
            Class::File | Class::Directory => true,
            Class::Tmpfs => self.devices.contains(dev),
            _ => false,
        }
    }
}

fn latencies(by_operation: &BTreeMap<u8, Histogram>) -> Latencies {
    let of = |ops: &[Op]| {
        let mut sum = Histogram::default();
        ops.iter()
            .filter_map(|op| by_operation.get(&(*op as u8)))
            .for_each(|histogram| sum.add(histogram));
        quantiles(&sum)
    };
    Latencies {
        open: of(&[Op::Open]),
        read: of(&[Op::Read, Op::UringRead]),
    }
}

/// Of some file sets, or of one thread.
#[derive(Default)]
pub struct Coarsely {
    open: Coarse,
    read: Coarse,
}

impl Coarsely {
    /// Adds what one operation took.
    pub fn add(&mut self, op: Op, latencies: &Coarse) {
        match op {
            Op::Open => self.open.add(latencies),
            Op::Read | Op::UringRead => self.read.add(latencies),
            _ => {}
        }
    }

    pub fn latencies(&self) -> Latencies {
        Latencies {
            open: quantiles_of(|q| self.open.quantile_ns(q)),
            read: quantiles_of(|q| self.read.quantile_ns(q)),
        }
    }
}

/// `None`: nothing was timed.
pub fn quantiles(histogram: &Histogram) -> Option<Quantiles> {
    quantiles_of(|q| histogram.quantile_ns(q))
}

fn quantiles_of(quantile_ns: impl Fn(f64) -> Option<f64>) -> Option<Quantiles> {
    let us = |q| Some(round(quantile_ns(q)? / 1e3, 3));
    Some(Quantiles {
        p50: us(0.5)?,
        p95: us(0.95)?,
        p99: us(0.99)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::fact::HistSum;

    const DISK: u32 = 8;
    const SLOW: u32 = 9;

    /// Two processes read, each on a device of its own, in so many nanoseconds.
    fn session() -> Session {
        let mut session = Session::default();
        for (pid, dev, bucket) in [(10, DISK, 40), (20, SLOW, 80)] {
            let hist = HistSum {
                tid: pid,
                dev,
                op: Op::Read as u8,
                class: Class::File as u8,
                latency: vec![(bucket, 100)],
                size: Vec::new(),
            };
            session.files.add_histogram(&hist, Some(pid));
        }
        session
    }

    #[test]
    fn latencies_are_of_their_device_and_process() {
        let session = session();
        let timed = Timed::of(&session);
        let p50 = |of: Latencies| of.read.map(|read| read.p50);
        let (quick, slow) = (p50(timed.of_process(10)), p50(timed.of_process(20)));
        assert!(quick.is_some() && quick < slow, "{quick:?} {slow:?}");
        assert_eq!(p50(timed.on(&[DISK].into())), quick);
        assert_eq!(p50(timed.on(&[SLOW].into())), slow);
        assert_eq!(p50(timed.on(&[DISK, SLOW].into())), p50(timed.all()));
        assert_eq!(p50(timed.of_process(30)), None);
        assert_eq!(timed.all().open.map(|open| open.p50), None);
    }
}
