//! The table of followed threads: an id leads to a place, and each place holds a state.
//!
//! States lie in an array, so that a CPU that knows the place of the thread it runs needs no look-up.

use std::{
    io,
    os::fd::{AsFd as _, AsRawFd as _, RawFd},
};

use aya::{
    Ebpf,
    maps::{Array, Map, MapData, MapError, Queue},
};
use trainprof_common::thread::ThreadState;

use super::{
    KernelError, map_error,
    wire::{Packed, Table, element_of},
};

/// Names of the maps.
pub(super) const THREADS: &str = "THREADS";
pub(super) const STATES: &str = "STATES";
pub(super) const FREE_PLACES: &str = "FREE_PLACES";

/// See the module.
pub struct Threads {
    places: Table<u32, u32>,
    states: Array<MapData, Packed<ThreadState>>,
    free: Queue<MapData, u32>,
}

impl Threads {
    /// Makes all places free. Must come before any probe is attached.
    pub(super) fn make_room(ebpf: &mut Ebpf, places: u32) -> Result<(), KernelError> {
        let map = ebpf
            .map_mut(FREE_PLACES)
            .ok_or(KernelError::NoMap(FREE_PLACES))?;
        let mut free: Queue<_, u32> = Queue::try_from(map).map_err(map_error(FREE_PLACES))?;
        for place in 0..places {
            free.push(place, 0).map_err(map_error(FREE_PLACES))?;
        }
        Ok(())
    }

    /// Takes the maps over.
    pub(super) fn take(ebpf: &mut Ebpf) -> Result<Self, KernelError> {
        let mut take = |name| ebpf.take_map(name).ok_or(KernelError::NoMap(name));
        Ok(Self {
            places: Table::new(take(THREADS)?).ok_or(KernelError::NoMap(THREADS))?,
            states: Array::try_from(take(STATES)?).map_err(map_error(STATES))?,
            free: Queue::try_from(take(FREE_PLACES)?).map_err(map_error(FREE_PLACES))?,
        })
    }

    /// Adds a thread; `Ok(false)` when it is there already, and stays as it is.
    ///
    /// # Errors
    /// `ENOSPC` when there is no room, and whatever the kernel says.
    pub fn add(&mut self, tid: u32, state: ThreadState) -> io::Result<bool> {
        if self.places.get(&tid).is_some() {
            return Ok(false);
        }
        let place = match self.free.pop(0) {
            Ok(place) => place,
            Err(MapError::ElementNotFound) => {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            Err(error) => return Err(io::Error::other(error)),
        };
        let added = self
            .states
            .set(place, Packed(state), 0)
            .map_err(io::Error::other)
            .and_then(|()| self.places.add(&tid, place));
        if !matches!(added, Ok(true)) {
            // The probes were first, or it cannot be added.
            self.free.push(place, 0).map_err(io::Error::other)?;
        }
        added
    }

    /// Takes a thread out, if it is still there.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn remove(&mut self, tid: u32) -> io::Result<()> {
        // Else a probe was first, and has freed the place.
        if let Some(place) = self.places.take(&tid)? {
            self.free.push(place, 0).map_err(io::Error::other)?;
        }
        Ok(())
    }

    /// The state of one followed thread.
    pub fn get(&self, tid: u32) -> Option<ThreadState> {
        let place = self.places.get(&tid)?;
        self.states.get(&place, 0).ok().map(|state| state.0)
    }

    /// Every followed thread.
    ///
    /// # Errors
    /// Whatever the kernel says.
    pub fn all(&self) -> io::Result<Vec<(u32, ThreadState)>> {
        let threads = self.places.read()?.into_iter();
        Ok(threads
            .filter_map(|(tid, place)| Some((tid, self.states.get(&place, 0).ok()?.0)))
            .collect())
    }
}

/// The table as a process sees it that has only the maps' descriptors.
#[derive(Clone, Copy)]
pub(super) struct Borrowed {
    places: RawFd,
    states: RawFd,
}

impl Borrowed {
    /// Of the maps of these programs, while they are still there.
    pub(super) fn of(ebpf: &Ebpf) -> Option<Self> {
        let (Map::HashMap(places), Map::Array(states)) = (ebpf.map(THREADS)?, ebpf.map(STATES)?)
        else {
            return None;
        };
        Some(Self {
            places: places.fd().as_fd().as_raw_fd(),
            states: states.fd().as_fd().as_raw_fd(),
        })
    }

    pub(super) fn descriptors(self) -> [RawFd; 2] {
        [self.places, self.states]
    }

    /// Every followed thread.
    pub(super) fn all(self) -> io::Result<Vec<(u32, ThreadState)>> {
        // SAFETY: the two maps have these types, and live as long as this process.
        unsafe {
            let threads = Table::<u32, u32>::read_borrowed(self.places)?.into_iter();
            Ok(threads
                .filter_map(|(tid, place)| Some((tid, element_of(self.states, &place).ok()?)))
                .collect())
        }
    }
}
