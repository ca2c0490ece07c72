//! Which BPF programs, maps and links the kernel holds, so that a test can see that none was left behind.

use std::collections::BTreeSet;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Ids of one kind of object.
pub type Ids = BTreeSet<u32>;

/// What the kernel holds right now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub programs: Ids,
    pub maps: Ids,
    pub links: Ids,
}

// Commands of bpf(2), include/uapi/linux/bpf.h.
const BPF_PROG_GET_NEXT_ID: libc::c_int = 11;
const BPF_MAP_GET_NEXT_ID: libc::c_int = 12;
const BPF_LINK_GET_NEXT_ID: libc::c_int = 31;

pub fn held() -> Held {
    Held {
        programs: ids(BPF_PROG_GET_NEXT_ID),
        maps: ids(BPF_MAP_GET_NEXT_ID),
        links: ids(BPF_LINK_GET_NEXT_ID),
    }
}

impl Held {
    /// What is here and was not in `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            programs: &self.programs - &before.programs,
            maps: &self.maps - &before.maps,
            links: &self.links - &before.links,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.programs.is_empty() && self.maps.is_empty() && self.links.is_empty()
    }
}

fn ids(command: libc::c_int) -> Ids {
    /// The part of `union bpf_attr` that the GET_NEXT_ID commands use.
    #[repr(C)]
    struct NextId {
        start: u32,
        next: u32,
        open_flags: u32,
    }
    let mut ids = Ids::new();
    let mut start = 0;
    loop {
        let mut attr = NextId {
            start,
            next: 0,
            open_flags: 0,
        };
        // SAFETY: the kernel reads and writes at most the size given, which is that of `attr`.
        let rc =
            unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut attr, size_of::<NextId>()) };
        if rc != 0 {
            let error = Error::last_os_error();
            assert_eq!(
                error.raw_os_error(),
                Some(libc::ENOENT),
                "bpf({command}): {error}"
            );
            return ids;
        }
        ids.insert(attr.next);
        start = attr.next;
    }
}

/// How many instructions the kernel looked at when it checked these programs (`verified_insns` of `struct bpf_prog_info`,
/// include/uapi/linux/bpf.h, since Linux 5.16). Programs that are gone meanwhile count as none.
pub fn verified_instructions(programs: &Ids) -> u64 {
    programs.iter().map(|id| u64::from(verified(*id))).sum()
}

fn verified(program: u32) -> u32 {
    const BPF_PROG_GET_FD_BY_ID: libc::c_int = 13;
    const BPF_OBJ_GET_INFO_BY_FD: libc::c_int = 15;
    const VERIFIED_INSNS: usize = 216;
    /// The part of `union bpf_attr` that the second one uses.
    #[repr(C)]
    struct GetInfo {
        fd: u32,
        len: u32,
        info: u64,
    }
    let id = [program, 0, 0];
    // SAFETY: the kernel reads at most the size given, which is that of `id`.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_PROG_GET_FD_BY_ID,
            &raw const id,
            size_of_val(&id),
        )
    };
    let Ok(fd @ 0..) = i32::try_from(fd) else {
        return 0;
    };
    // SAFETY: ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut info = [0_u8; 256];
    let mut attr = GetInfo {
        fd: fd.as_raw_fd() as u32,
        len: info.len() as u32,
        info: info.as_mut_ptr() as u64,
    };
    // SAFETY: the kernel writes at most `len` bytes to `info`, and reads and writes as much of `attr` as it is long.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_bpf,
            BPF_OBJ_GET_INFO_BY_FD,
            &raw mut attr,
            size_of::<GetInfo>(),
        )
    };
    assert_eq!(rc, 0, "program {program}: {}", Error::last_os_error());
    let number = info[VERIFIED_INSNS..].first_chunk().expect("four bytes");
    u32::from_le_bytes(*number)
}

/// Waits until the kernel holds nothing that was not in `before`: it frees after an RCU grace period.
pub fn wait_until_gone(before: &Held) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        let left = held().since(before);
        if left.is_empty() {
            return;
        }
        assert!(
            std::time::Instant::now() < until,
            "still in the kernel after 10 s: {left:?}"
        );
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

/// Waits until every probe on a mapped library of a process is in place: its code has changed and stays as it is.
pub fn wait_for_traps(pid: i32, library: &str) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let clean = std::fs::read(crate::gpu::fake(library)).expect("the library");
    let traps = || {
        let text = crate::gpu::text_of(pid, library);
        let page = text.len().min(64);
        let at = clean
            .windows(page)
            .position(|window| window == &text[..page])
            .expect("the code begins as the file's does");
        text.iter()
            .zip(&clean[at..])
            .filter(|(a, b)| a != b)
            .count()
    };
    let mut last = (traps(), std::time::Instant::now());
    while last.0 == 0 || last.1.elapsed() < std::time::Duration::from_millis(1_500) {
        assert!(std::time::Instant::now() < until, "no probe in {library}");
        std::thread::sleep(std::time::Duration::from_millis(50));
        let now = traps();
        if now != last.0 {
            last = (now, std::time::Instant::now());
        }
    }
}
