//! Entries of a map that a running trainprof holds: what the probes know can be read, and falsified, from outside.

use std::{
    fs,
    io::{Error, Result},
    mem::MaybeUninit,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use trainprof_common::thread::ThreadState;

// Commands of bpf(2), include/uapi/linux/bpf.h.
const BPF_MAP_LOOKUP_ELEM: libc::c_int = 1;
const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
const BPF_MAP_GET_FD_BY_ID: libc::c_int = 14;
const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;

/// Values of a map that may be read from any bytes.
///
/// # Safety
/// Any bytes are one, and none of them is padding.
pub unsafe trait Words: Copy {}
// SAFETY: a number.
unsafe impl Words for u32 {}
// SAFETY: numbers alone, laid out without padding (`trainprof_common::wire`).
unsafe impl Words for ThreadState {}

/// A map whose values are `V`.
pub struct KernelMap<V> {
    fd: OwnedFd,
    values: std::marker::PhantomData<V>,
}

/// The part of `union bpf_attr` that commands on entries use.
#[repr(C)]
struct Entry {
    fd: u32,
    key: u64,
    value: u64,
    flags: u64,
}

/// The part of `union bpf_attr` that the command for a map's description uses.
#[repr(C)]
struct GetInfo {
    fd: u32,
    len: u32,
    info: u64,
}

/// The beginning of `struct bpf_map_info`.
#[derive(Default)]
#[repr(C)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
    name: [u8; 16],
}

fn bpf<A>(command: libc::c_int, attr: &mut A) -> Result<libc::c_long> {
    // SAFETY: the kernel reads and writes at most the size given, which is that of `attr`, and what its pointers lead to.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            command,
            std::ptr::from_mut(attr),
            size_of::<A>(),
        )
    };
    if rc < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(rc)
    }
}

impl<V: Words> KernelMap<V> {
    /// The map of that name which a process holds.
    ///
    /// # Panics
    /// When there is none, or its keys are no numbers of 32 bits, or its values no `V`.
    pub fn of(pid: i32, name: &str) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("its descriptors");
        let ids = descriptors.filter_map(|entry| {
            let text = fs::read_to_string(entry.ok()?.path()).ok()?;
            let line = text.lines().find_map(|line| line.strip_prefix("map_id:"))?;
            line.trim().parse::<u32>().ok()
        });
        ids.filter_map(|id| Self::named(id, name).ok()?)
            .next()
            .unwrap_or_else(|| panic!("process {pid} holds no map {name}"))
    }

    fn named(id: u32, name: &str) -> Result<Option<Self>> {
        let fd = bpf(BPF_MAP_GET_FD_BY_ID, &mut [id, 0, 0])?;
        // SAFETY: ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
        let mut info = MapInfo::default();
        let mut attr = GetInfo {
            fd: fd.as_raw_fd() as u32,
            len: size_of::<MapInfo>() as u32,
            info: (&raw mut info) as u64,
        };
        bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attr)?;
        let length = info.name.iter().position(|byte| *byte == 0);
        if &info.name[..length.unwrap_or(info.name.len())] != name.as_bytes() {
            return Ok(None);
        }
        assert_eq!(info.key_size as usize, size_of::<u32>(), "keys of {name}");
        assert_eq!(info.value_size as usize, size_of::<V>(), "values of {name}");
        Ok(Some(Self {
            fd,
            values: std::marker::PhantomData,
        }))
    }

    pub fn get(&self, key: u32) -> Result<V> {
        let mut value = MaybeUninit::<V>::uninit();
        self.on_entry(BPF_MAP_LOOKUP_ELEM, key, value.as_mut_ptr() as u64)?;
        // SAFETY: the kernel filled all of it in, and any bytes are a `V`.
        Ok(unsafe { value.assume_init() })
    }

    pub fn set(&self, key: u32, value: &V) -> Result<()> {
        self.on_entry(BPF_MAP_UPDATE_ELEM, key, std::ptr::from_ref(value) as u64)
    }

    fn on_entry(&self, command: libc::c_int, key: u32, value: u64) -> Result<()> {
        let mut entry = Entry {
            fd: self.fd.as_raw_fd() as u32,
            key: (&raw const key) as u64,
            value,
            flags: 0,
        };
        bpf(command, &mut entry).map(drop)
    }
}
