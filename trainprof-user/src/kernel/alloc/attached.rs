//! Probes that are attached, by links of one of two kinds: one for each probe, or two for all of them (one at entries, one
//! at returns), where the kernel has such. These cost the job less when they are removed: see `kernel/uprobe/multi.rs`.

use std::{io, num::NonZeroU32, path::Path, slice};

use aya::{
    Ebpf,
    programs::uprobe::{UProbeLink, UProbeScope},
};

use super::{
    ENTRY, RETURN,
    calibrate::{OWN_PROGRAM, own_place},
};
use crate::kernel::uprobe::{
    self,
    multi::{At, MultiLinks, MultiProgram, Relocated, prepare},
};

/// A place that is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spot {
    /// In the file.
    pub offset: u64,
    /// What the programs are told there.
    pub cookie: u64,
    /// The return of the function is probed too.
    pub returns: bool,
}

/// The programs, for links of many uprobes.
pub struct Together {
    entry: MultiProgram,
    returning: MultiProgram,
    /// A place in our own program that we never come by.
    own: Option<u64>,
}

impl Together {
    /// What [`Self::load`] wants, bound to maps that must not be taken out before. Says in words why there is none.
    pub fn prepare(ebpf: &Ebpf) -> Result<Relocated, String> {
        prepare(ebpf, &[ENTRY, RETURN])
    }

    /// Loads them. Says in words why not.
    pub fn load(prepared: &Relocated) -> Result<Self, String> {
        Ok(Self {
            entry: MultiProgram::load(prepared, ENTRY)?,
            returning: MultiProgram::load(prepared, RETURN)?,
            own: own_place(),
        })
    }

    /// Lets the next removal take its traps at once: add the probes that are to go to what this gives.
    ///
    /// The kernel has one lock for all that comes and goes (`dup_mmap_sem` in kernel/events/uprobes.c). The first who writes
    /// waits for a grace period of RCU, here 6 ms; those who follow within another do not (kernel/rcu/sync.c). So a probe of our
    /// own process waits, while those of the job still count, rather than its traps.
    pub fn before_removal(&self) -> Links {
        let us = NonZeroU32::new(std::process::id());
        let spot = self.own.map(|offset| Spot {
            offset,
            cookie: 0,
            returns: false,
        });
        us.zip(spot)
            .and_then(|(us, spot)| self.attach(Path::new(OWN_PROGRAM), us, &[spot]).ok())
            .unwrap_or_default()
    }

    /// Probes all places of a file, or none.
    pub fn attach(&self, path: &Path, pid: NonZeroU32, spots: &[Spot]) -> io::Result<Links> {
        let places = |of: fn(&Spot) -> bool| -> Vec<(u64, u64)> {
            let of = spots.iter().filter(|spot| of(spot));
            of.map(|spot| (spot.offset, spot.cookie)).collect()
        };
        let mut together = MultiLinks::default();
        let returns = places(|spot| spot.returns);
        if !returns.is_empty() {
            together.add(self.returning.attach(path, pid, At::Return, &returns)?);
        }
        together.add(self.entry.attach(path, pid, At::Place, &places(|_| true))?);
        Ok(Links {
            together,
            ..Links::default()
        })
    }
}

/// Links of probes, all of one kind; dropping them removes the probes.
#[derive(Default)]
pub struct Links {
    /// In the order in which they are removed. The kernel takes a tenth of a second for each, and does one after the other also
    /// when several threads ask: then hits of those that wait would not be counted either.
    each: Vec<UProbeLink>,
    together: MultiLinks,
}

impl Links {
    /// Takes over others, which go first.
    pub fn put_before(&mut self, mut first: Self) {
        first.each.append(&mut self.each);
        self.each = first.each;
        self.together.add(first.together);
    }

    /// How many removals, one after the other, take them away.
    pub fn removals(&self) -> u64 {
        self.each.len().max(1) as u64
    }
}

/// Probes one place of a file. Gives in words what went wrong, and whether we lack the permission.
pub fn attach(
    ebpf: &mut Ebpf,
    together: Option<&Together>,
    path: &Path,
    pid: NonZeroU32,
    spot: &Spot,
) -> Result<Links, (String, bool)> {
    if let Some(together) = together {
        return together
            .attach(path, pid, slice::from_ref(spot))
            .map_err(|error| {
                let denied = error.kind() == io::ErrorKind::PermissionDenied;
                (error.to_string(), denied)
            });
    }
    let mut links = Links::default();
    let programs: &[&'static str] = if spot.returns {
        &[RETURN, ENTRY]
    } else {
        &[ENTRY]
    };
    for program in programs {
        let scope = UProbeScope::OneProcess(pid);
        let link = uprobe::attach(ebpf, program, spot.offset, spot.cookie, path, scope)?;
        links.each.insert(0, link);
    }
    Ok(links)
}
