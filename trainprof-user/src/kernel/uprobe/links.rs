//! Probes that are attached, by links of one of two kinds: one for each probe, or two for all of them (one at entries, one
//! at returns), where the kernel has such. These cost the job less when they are removed: see `multi.rs`.

use std::{io, num::NonZeroU32, path::Path, slice};

use aya::{
    Ebpf,
    programs::uprobe::{UProbeLink, UProbeScope},
};

use super::multi::{At, MultiLinks, MultiProgram, Relocated, prepare};

/// Names of two programs in the eBPF object.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernel) struct Pair {
    /// At places.
    pub entry: &'static str,
    /// At returns of the functions that are entered there.
    pub returning: &'static str,
}

/// A place that is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel) struct Spot {
    /// In the file.
    pub offset: u64,
    /// What the programs are told there.
    pub cookie: u64,
    /// The return of the function is probed too.
    pub returns: bool,
}

/// The programs, for links of many uprobes.
pub(in crate::kernel) struct Together {
    entry: MultiProgram,
    returning: MultiProgram,
}

impl Together {
    /// What [`Self::load`] wants, bound to maps that must not be taken out before. Says in words why there is none.
    pub fn prepare(ebpf: &Ebpf, pair: Pair) -> Result<Relocated, String> {
        prepare(ebpf, &[pair.entry, pair.returning])
    }

    /// Loads them. Says in words why not.
    pub fn load(prepared: &Relocated, pair: Pair) -> Result<Self, String> {
        Ok(Self {
            entry: MultiProgram::load(prepared, pair.entry)?,
            returning: MultiProgram::load(prepared, pair.returning)?,
        })
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
pub(in crate::kernel) struct Links {
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
pub(in crate::kernel) fn attach(
    ebpf: &mut Ebpf,
    pair: Pair,
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
    // The return first: no call is then seen to begin that is not seen to end.
    let returning = spot.returns.then_some(pair.returning);
    for program in returning.into_iter().chain([pair.entry]) {
        let scope = UProbeScope::OneProcess(pid);
        let link = super::attach(ebpf, program, spot.offset, spot.cookie, path, scope)?;
        links.each.insert(0, link);
    }
    Ok(links)
}
