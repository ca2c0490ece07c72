//! Links that attach a program to many places of a file at once (`BPF_TRACE_UPROBE_MULTI`), which `aya` 0.14 cannot make.
//!
//! Closing one takes every trap out of the code first, and then waits once until no program can be running
//! (`bpf_uprobe_unregister` in kernel/trace/bpf_trace.c). A link of a single place made from a perf event does it the other
//! way round from Linux 6.13 on: its trap is hit while the kernel waits (`perf_event_detach_bpf_prog` there).

use std::{
    ffi::{CStr, CString},
    io,
    num::NonZeroU32,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
    thread,
};

use aya::Ebpf;
use aya_obj::generated::bpf_insn;

pub(in crate::kernel) use super::relocated::Relocated;
use crate::env::host::KernelVersion;

/// Linux from which on a link of one process is hit by all threads of that one, and by no other process
/// (`uprobe_prog_run` in kernel/trace/bpf_trace.c: compared as threads before 6.10, as memory before 6.12).
const SINCE: KernelVersion = KernelVersion {
    major: 6,
    minor: 12,
};

// From include/uapi/linux/bpf.h.
const BPF_PROG_LOAD: libc::c_long = 5;
const BPF_LINK_CREATE: libc::c_long = 28;
const BPF_PROG_TYPE_KPROBE: u32 = 2;
const BPF_TRACE_UPROBE_MULTI: u32 = 48;
const BPF_F_UPROBE_MULTI_RETURN: u32 = 1;

/// Bytes of the verifier's log that are read: its end.
const LOG: usize = 1 << 16;

/// `union bpf_attr`, the part for loading a program, as far as it is used.
#[repr(C)]
#[derive(Default)]
struct LoadAttr {
    prog_type: u32,
    insn_cnt: u32,
    insns: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log_buf: u64,
    kern_version: u32,
    prog_flags: u32,
    prog_name: [u8; 16],
    prog_ifindex: u32,
    expected_attach_type: u32,
}

/// `union bpf_attr`, the part for a link of many uprobes.
#[repr(C)]
#[derive(Default)]
struct LinkAttr {
    prog_fd: u32,
    target_fd: u32,
    attach_type: u32,
    flags: u32,
    path: u64,
    offsets: u64,
    ref_ctr_offsets: u64,
    cookies: u64,
    cnt: u32,
    multi_flags: u32,
    pid: u32,
    pad: u32,
}

/// Where a program sees a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernel) enum At {
    /// Where the probe is.
    Place,
    /// Where the function that is entered there returns.
    Return,
}

/// Programs of the embedded object, to be loaded with the maps that `ebpf` has now.
///
/// # Errors
/// In words: the kernel is too old.
pub(in crate::kernel) fn prepare(ebpf: &Ebpf, programs: &[&str]) -> Result<Relocated, String> {
    if KernelVersion::running().is_none_or(|version| version < SINCE) {
        return Err(format!("links of many uprobes take Linux {SINCE}"));
    }
    Relocated::new(ebpf, programs)
}

/// A program that is loaded for such links.
pub(in crate::kernel) struct MultiProgram(OwnedFd);

impl MultiProgram {
    /// Loads one of programs that [`prepare`] gave.
    ///
    /// # Errors
    /// In words: the kernel refuses.
    pub fn load(of: &Relocated, name: &str) -> Result<Self, String> {
        let (instructions, license) = of
            .program(name)
            .ok_or_else(|| format!("the eBPF object has no program {name}"))?;
        load(name, instructions, license)
            .map(Self)
            .map_err(|reason| format!("{name}: {reason}"))
    }

    /// Attaches it to one process, at offsets of a file with the number that the program is told at each. All or none.
    ///
    /// # Errors
    /// The kernel's, of the first place that it refuses: ESRCH where the process has ended, EPERM, ENOTSUPP (524) of an
    /// instruction that cannot be probed (`bpf_uprobe_multi_link_attach` in kernel/trace/bpf_trace.c).
    pub fn attach(
        &self,
        path: &Path,
        pid: NonZeroU32,
        at: At,
        places: &[(u64, u64)],
    ) -> io::Result<MultiLinks> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        let (offsets, cookies): (Vec<u64>, Vec<u64>) = places.iter().copied().unzip();
        let mut attr = LinkAttr {
            prog_fd: self.0.as_raw_fd() as u32,
            attach_type: BPF_TRACE_UPROBE_MULTI,
            path: path.as_ptr() as u64,
            offsets: offsets.as_ptr() as u64,
            cookies: cookies.as_ptr() as u64,
            cnt: offsets.len() as u32,
            multi_flags: if at == At::Return {
                BPF_F_UPROBE_MULTI_RETURN
            } else {
                0
            },
            pid: pid.get(),
            ..LinkAttr::default()
        };
        // SAFETY: a path that ends with 0 and arrays of `cnt` numbers, which all live until the call returns.
        let link = unsafe { bpf(BPF_LINK_CREATE, &mut attr) }?;
        Ok(MultiLinks(vec![link]))
    }
}

/// Links that are closed all at once when this is dropped: a place that two of them have keeps its trap until both are
/// gone, and closing each waits for some tens of milliseconds after it took its traps.
#[derive(Default)]
pub(in crate::kernel) struct MultiLinks(Vec<OwnedFd>);

impl MultiLinks {
    /// Takes others over.
    pub fn add(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }
}

impl Drop for MultiLinks {
    fn drop(&mut self) {
        let Some(last) = self.0.pop() else { return };
        thread::scope(|scope| {
            let others: Vec<_> = self
                .0
                .drain(..)
                // Where no thread can be had the link is closed at once: what it moved is dropped.
                .filter_map(|link| {
                    thread::Builder::new()
                        .spawn_scoped(scope, move || drop(link))
                        .ok()
                })
                .collect();
            drop(last);
            // Processes are forked later, and that wants threads to be gone, not only done.
            for other in others {
                let _ = other.join();
            }
        });
    }
}

/// Loads a program. A refusal is told with the last words of the verifier.
fn load(name: &str, instructions: &[bpf_insn], license: &CStr) -> Result<OwnedFd, String> {
    let mut attr = LoadAttr {
        prog_type: BPF_PROG_TYPE_KPROBE,
        insn_cnt: instructions.len() as u32,
        insns: instructions.as_ptr() as u64,
        license: license.as_ptr() as u64,
        expected_attach_type: BPF_TRACE_UPROBE_MULTI,
        ..LoadAttr::default()
    };
    // The last byte stays 0.
    for (to, from) in attr.prog_name[..15].iter_mut().zip(name.bytes()) {
        *to = from;
    }
    // SAFETY: `insn_cnt` instructions and a license that ends with 0, which live until the call returns; no log.
    let error = match unsafe { bpf(BPF_PROG_LOAD, &mut attr) } {
        Ok(program) => return Ok(program),
        Err(error) => error,
    };
    let mut log = vec![0_u8; LOG];
    attr.log_level = 1;
    attr.log_size = log.len() as u32;
    attr.log_buf = log.as_mut_ptr() as u64;
    // SAFETY: as before, and a log with room for `log_size` bytes.
    if let Ok(program) = unsafe { bpf(BPF_PROG_LOAD, &mut attr) } {
        return Ok(program);
    }
    let text = String::from_utf8_lossy(log.split(|byte| *byte == 0).next().unwrap_or_default());
    let last = text.lines().rfind(|line| !line.starts_with("processed"));
    Err(format!("{error}: {}", last.unwrap_or_default()))
}

/// A command that gives a descriptor, which is closed on exec.
///
/// # Safety
/// Pointers in the attribute must be good for what bpf(2) says of the command, and so the members' places.
unsafe fn bpf<A>(command: libc::c_long, attr: &mut A) -> io::Result<OwnedFd> {
    // SAFETY: the attribute is ours for the length that is passed; the caller answers for what it holds.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attr, size_of::<A>()) };
    let fd = RawFd::try_from(fd).map_err(|_| io::Error::from_raw_os_error(libc::EOVERFLOW))?;
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened it for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;

    #[test]
    fn attributes_lie_as_the_kernel_has_them() {
        assert_eq!(offset_of!(LoadAttr, log_buf), 32);
        assert_eq!(offset_of!(LoadAttr, prog_name), 48);
        assert_eq!(offset_of!(LoadAttr, expected_attach_type), 68);
        assert_eq!(size_of::<LoadAttr>(), 72);
        assert_eq!(offset_of!(LinkAttr, path), 16);
        assert_eq!(offset_of!(LinkAttr, cookies), 40);
        assert_eq!(offset_of!(LinkAttr, pid), 56);
        assert_eq!(size_of::<LinkAttr>(), 64);
    }
}
