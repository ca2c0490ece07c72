//! Moving wire types in and out of the kernel.

use std::{
    io,
    marker::PhantomData,
    mem::{MaybeUninit, size_of},
    os::fd::{AsFd, AsRawFd, RawFd},
};

use aya::{
    Pod,
    maps::{Map, MapData},
};
use trainprof_common::Wire;

/// A wire type that aya accepts in maps and globals.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Packed<T: Wire>(pub T);

// SAFETY: `Wire` promises integers without implicit padding.
unsafe impl<T: Wire> Pod for Packed<T> {}

/// The descriptor of a map of a kind that we use.
pub fn descriptor(map: &Map) -> Option<RawFd> {
    let (Map::Array(data)
    | Map::PerCpuArray(data)
    | Map::HashMap(data)
    | Map::RingBuf(data)
    | Map::StackTraceMap(data)) = map
    else {
        return None;
    };
    Some(data.fd().as_fd().as_raw_fd())
}

const BPF_MAP_LOOKUP_ELEM: libc::c_long = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_long = 2;
const BPF_MAP_LOOKUP_AND_DELETE_ELEM: libc::c_long = 21;
const BPF_NOEXIST: u64 = 1;
const BPF_MAP_LOOKUP_BATCH: libc::c_long = 24;
const BPF_MAP_LOOKUP_AND_DELETE_BATCH: libc::c_long = 25;

/// `union bpf_attr`, the part for batches (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct BatchAttr {
    in_batch: u64,
    out_batch: u64,
    keys: u64,
    values: u64,
    count: u32,
    map_fd: u32,
    elem_flags: u64,
    flags: u64,
}

/// `union bpf_attr`, the part for single elements.
#[repr(C)]
struct ElementAttr {
    map_fd: u32,
    pad: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// Looks an element of a map up, or changes it.
///
/// # Safety
/// `fd` is a map of these types.
unsafe fn element<K: Wire, V: Wire>(
    fd: RawFd,
    command: libc::c_long,
    key: &K,
    value: *mut V,
    flags: u64,
) -> io::Result<()> {
    let attr = ElementAttr {
        map_fd: fd as u32,
        pad: 0,
        key: (&raw const *key) as u64,
        value: value as u64,
        flags,
    };
    // SAFETY: key and value have the map's sizes, as promised by the caller.
    match unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            &raw const attr,
            size_of::<ElementAttr>(),
        )
    } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// An element of a map that another one owns.
///
/// # Safety
/// `fd` is a map of these types.
pub unsafe fn element_of<K: Wire, V: Wire>(fd: RawFd, key: &K) -> io::Result<V> {
    let mut value = MaybeUninit::<V>::uninit();
    // SAFETY: as promised by the caller; the kernel wrote the whole value, and every bit pattern is valid.
    unsafe {
        element(fd, BPF_MAP_LOOKUP_ELEM, key, value.as_mut_ptr(), 0)?;
        Ok(value.assume_init())
    }
}

/// A hash map that user space reads in batches: one system call for thousands of entries.
pub struct Table<K, V> {
    data: MapData,
    types: PhantomData<(K, V)>,
}

impl<K: Wire, V: Wire> Table<K, V> {
    /// Takes a hash map over. `None` when it is of another kind or size.
    pub fn new(map: Map) -> Option<Self> {
        let Map::HashMap(data) = map else {
            return None;
        };
        let info = data.info().ok()?;
        (info.key_size() as usize == size_of::<K>() && info.value_size() as usize == size_of::<V>())
            .then_some(Self {
                data,
                types: PhantomData,
            })
    }

    fn fd(&self) -> RawFd {
        self.data.fd().as_fd().as_raw_fd()
    }

    /// One entry.
    pub fn get(&self, key: &K) -> Option<V> {
        // SAFETY: key and value have the map's sizes, checked in `new`.
        unsafe { element_of(self.fd(), key) }.ok()
    }

    /// Adds an entry; `Ok(false)` when there is one already, which stays as it is.
    pub fn add(&self, key: &K, mut value: V) -> io::Result<bool> {
        let value = &raw mut value;
        // SAFETY: as in `get`.
        match unsafe { element(self.fd(), BPF_MAP_UPDATE_ELEM, key, value, BPF_NOEXIST) } {
            Ok(()) => Ok(true),
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes an entry out at once; `Ok(None)` when there is none.
    pub fn take(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = MaybeUninit::<V>::uninit();
        let to = value.as_mut_ptr();
        // SAFETY: as in `get`.
        match unsafe { element(self.fd(), BPF_MAP_LOOKUP_AND_DELETE_ELEM, key, to, 0) } {
            // SAFETY: the kernel wrote the whole value, and every bit pattern is valid.
            Ok(()) => Ok(Some(unsafe { value.assume_init() })),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Every entry, left in place.
    pub fn read(&self) -> io::Result<Vec<(K, V)>> {
        self.batches(BPF_MAP_LOOKUP_BATCH)
    }

    /// Looks at the entries of a hash map that another table owns.
    ///
    /// # Safety
    /// `fd` is a hash map of these types.
    pub unsafe fn read_borrowed(fd: RawFd) -> io::Result<Vec<(K, V)>> {
        Self::batches_of(fd, BPF_MAP_LOOKUP_BATCH)
    }

    /// Takes every entry out. Nobody may write to the map meanwhile.
    pub fn drain(&self) -> io::Result<Vec<(K, V)>> {
        self.batches(BPF_MAP_LOOKUP_AND_DELETE_BATCH)
    }

    /// Takes those entries out whose keys are wanted. Others may be written to meanwhile.
    pub fn take_where(&self, wanted: impl Fn(&K) -> bool) -> io::Result<Vec<(K, V)>> {
        let mut out = Vec::new();
        for (key, _) in self.read()? {
            if wanted(&key)
                && let Some(value) = self.take(&key)?
            {
                out.push((key, value));
            }
        }
        Ok(out)
    }

    fn batches(&self, command: libc::c_long) -> io::Result<Vec<(K, V)>> {
        Self::batches_of(self.fd(), command)
    }

    fn batches_of(fd: RawFd, command: libc::c_long) -> io::Result<Vec<(K, V)>> {
        let mut out = Vec::new();
        let mut room = 512_usize;
        // The kernel's cursor of a hash map is a bucket number.
        let mut cursor = [0_u32; 2];
        let mut first = true;
        loop {
            let mut keys = Vec::<K>::with_capacity(room);
            let mut values = Vec::<V>::with_capacity(room);
            let mut next = [0_u32; 2];
            let mut attr = BatchAttr {
                in_batch: if first { 0 } else { cursor.as_ptr() as u64 },
                out_batch: next.as_mut_ptr() as u64,
                keys: keys.as_mut_ptr() as u64,
                values: values.as_mut_ptr() as u64,
                count: room as u32,
                map_fd: fd as u32,
                ..BatchAttr::default()
            };
            // SAFETY: both buffers have room for `count` entries of the map's sizes.
            let rc = unsafe {
                libc::syscall(
                    libc::SYS_bpf,
                    command,
                    &raw mut attr,
                    size_of::<BatchAttr>(),
                )
            };
            let error = (rc != 0).then(io::Error::last_os_error);
            let code = error.as_ref().and_then(io::Error::raw_os_error);
            // A bucket longer than the room: nothing was taken, try again with more.
            if code == Some(libc::ENOSPC) && room < 1 << 20 {
                room *= 4;
                continue;
            }
            let ended = code == Some(libc::ENOENT);
            if let Some(error) = error
                && !ended
            {
                return Err(error);
            }
            // SAFETY: the kernel wrote `count` entries, at most `room`.
            unsafe {
                let count = (attr.count as usize).min(room);
                keys.set_len(count);
                values.set_len(count);
            }
            out.extend(keys.into_iter().zip(values));
            if ended {
                return Ok(out);
            }
            cursor = next;
            first = false;
        }
    }
}
