//! Numbers for file sets: files of one directory with one extension.

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{
        bpf_get_smp_processor_id,
        generated::{bpf_probe_read_kernel_str, bpf_probe_read_user_str},
    },
};
use trainprof_common::{
    fileset::{FilesetInfo, FilesetKey, NO_FILESET, PATH_BYTES, TEXT_DEV},
    loss::Loss,
    offsets::MISSING,
    op::Class,
};

use crate::{
    emit,
    kernel::{offset, peek},
    maps::{FILESET_COUNT, FILESET_INFO, FILESETS, SCRATCH_INFO},
};

/// Longest name of a directory entry, with its NUL (NAME_MAX + 1).
const NAME_BYTES: usize = 256;
/// Deepest directory whose path is kept whole.
const MAX_DEPTH: usize = 32;
/// Bytes of a path's text that are looked at.
const TEXT_BYTES: usize = 256;
/// Bytes of it that are looked at between two looks for the end.
const CHUNK: usize = 16;
/// Low bits of a number that name the CPU which gave it out.
const CPU_BITS: u32 = 12;

/// Mount id of a `struct vfsmount`, as in /proc/PID/mountinfo; 0 when it cannot be told.
#[inline(always)]
pub fn mount_id(vfsmount: u64) -> u32 {
    let embedded = offset!(mount_mnt);
    if vfsmount == 0 || embedded == MISSING {
        return 0;
    }
    peek(vfsmount - u64::from(embedded), offset!(mount_id)).unwrap_or(0)
}

/// The extension in the last 8 bytes of a name: [`FilesetKey::ext`].
#[inline(always)]
fn extension(dentry: u64) -> u64 {
    let len: u32 = peek(dentry, offset!(dentry_name_len)).unwrap_or(0);
    let name: u64 = peek(dentry, offset!(dentry_name)).unwrap_or(0);
    // Names live in blocks of at least 32 bytes, so 8 can always be read.
    let tail: u64 = if len >= 8 {
        peek(name + u64::from(len) - 8, 0).unwrap_or(0)
    } else if len > 0 {
        peek::<u64>(name, 0).unwrap_or(0) << ((8 - len) * 8)
    } else {
        0
    };
    let mut shift = 56;
    while shift > 0 {
        if (tail >> shift) & 0xff == u64::from(b'.') {
            // The dot is the last byte, or what follows it is a number: no kind of file.
            if shift == 56 || ((tail >> (shift + 8)) as u8).is_ascii_digit() {
                return 0;
            }
            return tail >> (shift + 8);
        }
        shift -= 8;
    }
    0
}

/// The file set of an open file's directory entry.
#[inline(always)]
pub fn of_dentry(dentry: u64, class: Class, dev: u32, magic: u64, mnt_id: u32, tgid: u32) -> u32 {
    let (dir, ext) = if class as u32 == Class::Directory as u32 {
        (dentry, 0)
    } else {
        (
            peek(dentry, offset!(dentry_parent)).unwrap_or(0),
            extension(dentry),
        )
    };
    let dir_inode: u64 = peek(dir, offset!(dentry_inode)).unwrap_or(0);
    let key = FilesetKey {
        dir: peek(dir_inode, offset!(inode_ino)).unwrap_or(0),
        ext,
        dev,
        mnt_id,
    };
    // SAFETY: the value is copied out at once and never changes.
    match unsafe { FILESETS.get(key) } {
        Some(number) => *number,
        None => name_dentry(key, dir, magic, tgid),
    }
}

/// Gives a number to a file set that was not seen before, with the path of its directory.
#[inline(never)]
fn name_dentry(key: FilesetKey, dir: u64, magic: u64, tgid: u32) -> u32 {
    let Some(info) = SCRATCH_INFO.get_ptr_mut(0) else {
        return NO_FILESET;
    };
    // SAFETY: a per-CPU slot.
    let info = unsafe { &mut *info };
    info.key = key;
    info.magic = magic;
    info.tgid = tgid;
    info.dfd = 0;
    info.truncated = 0;
    let mut used = 0_usize;
    let mut at = dir;
    for _ in 0..MAX_DEPTH {
        let parent: u64 = peek(at, offset!(dentry_parent)).unwrap_or(0);
        if parent == 0 || parent == at {
            at = 0;
            break;
        }
        if used > PATH_BYTES - NAME_BYTES {
            break;
        }
        let name: u64 = peek(at, offset!(dentry_name)).unwrap_or(0);
        // SAFETY: `used` leaves room for NAME_BYTES.
        let n = unsafe {
            bpf_probe_read_kernel_str(
                info.path.as_mut_ptr().add(used).cast(),
                NAME_BYTES as u32,
                name as *const core::ffi::c_void,
            )
        };
        if n <= 0 || n as usize > NAME_BYTES {
            break;
        }
        used += n as usize;
        at = parent;
    }
    info.truncated = u32::from(at != 0);
    info.path_len = used as u32;
    publish(info)
}

/// The file set of a path given as text: its directory part, relative to `dfd`. For calls that leave no
/// descriptor behind. A global function: the verifier looks at it once, not at every call.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn fileset_of_text(path: u64, dfd: i32, tgid: u32) -> u32 {
    let Some(info) = SCRATCH_INFO.get_ptr_mut(0) else {
        return NO_FILESET;
    };
    // SAFETY: a per-CPU slot.
    let info = unsafe { &mut *info };
    // SAFETY: the buffer holds PATH_BYTES.
    let n = unsafe {
        bpf_probe_read_user_str(
            info.path.as_mut_ptr().cast(),
            TEXT_BYTES as u32,
            path as *const core::ffi::c_void,
        )
    };
    if n <= 0 {
        return NO_FILESET;
    }
    // FNV-1a of the part up to the last slash, without a branch per byte: each would double the paths
    // that the verifier has to look at.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut dir_hash = hash;
    let mut dir_len = 0_u64;
    let mut alive = u64::MAX;
    for chunk in 0..TEXT_BYTES / CHUNK {
        for i in 0..CHUNK {
            let at = chunk * CHUNK + i;
            let byte = u64::from(info.path[at]);
            alive &= !mask_of_zero(byte);
            let slash = alive & mask_of_zero(byte ^ u64::from(b'/'));
            dir_hash = hash & slash | dir_hash & !slash;
            dir_len = (at as u64 + 1) & slash | dir_len & !slash;
            hash = (hash ^ byte).wrapping_mul(0x0100_0000_01b3);
        }
        if alive == 0 {
            break;
        }
    }
    let absolute = info.path[0] == b'/';
    if !absolute {
        dir_hash ^=
            (u64::from(tgid) << 32 | u64::from(dfd as u32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    let key = FilesetKey {
        dir: dir_hash,
        ext: 0,
        dev: TEXT_DEV,
        mnt_id: 0,
    };
    // SAFETY: the value is copied out at once and never changes.
    if let Some(number) = unsafe { FILESETS.get(key) } {
        return *number;
    }
    info.key = key;
    info.magic = 0;
    info.tgid = tgid;
    info.dfd = dfd;
    info.truncated = u32::from(n as usize >= TEXT_BYTES);
    info.path_len = dir_len as u32;
    publish(info)
}

/// All ones when `v` is 0, else 0; for values below 2^63.
#[inline(always)]
fn mask_of_zero(v: u64) -> u64 {
    0_u64.wrapping_sub(v.wrapping_sub(1) >> 63)
}

/// Takes the next number; the description is in place before the key can be found.
#[inline(always)]
fn publish(info: &FilesetInfo) -> u32 {
    let Some(count) = FILESET_COUNT.get_ptr_mut(0) else {
        return NO_FILESET;
    };
    // SAFETY: a per-CPU slot. Each CPU numbers for itself, so that none needs to wait for another.
    let number = unsafe {
        *count += 1;
        *count << CPU_BITS | bpf_get_smp_processor_id() & ((1 << CPU_BITS) - 1)
    };
    if FILESET_INFO.insert(number, info, 0).is_err() {
        emit::lost(Loss::FilesetsFull);
        return NO_FILESET;
    }
    if FILESETS
        .insert(info.key, number, u64::from(BPF_NOEXIST))
        .is_err()
    {
        let _ = FILESET_INFO.remove(number);
        // SAFETY: as in `of_dentry`. Another CPU was first, or the table is full.
        return match unsafe { FILESETS.get(info.key) } {
            Some(number) => *number,
            None => {
                emit::lost(Loss::FilesetsFull);
                NO_FILESET
            }
        };
    }
    number
}
