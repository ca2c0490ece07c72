//! Numbers for file sets: files of one directory with one extension.

use core::hint::black_box;

use aya_ebpf::{
    bindings::BPF_NOEXIST,
    helpers::{
        bpf_get_smp_processor_id,
        generated::{bpf_probe_read_kernel_str, bpf_probe_read_user_str},
    },
};
use trainprof_common::{
    fileset::{FilesetInfo, FilesetKey, FilesetRef, NO_FILESET, PATH_BYTES},
    loss::Loss,
    offsets::MISSING,
    thread::Described,
};

use crate::{
    emit,
    kernel::{copy_block, fact, in_block, member, offset, peek, syscall_arg},
    maps::{
        Blocks, FILESET_COUNT, FILESET_INFO, FILESETS, KNOWN, KNOWN_FILESETS, KnownFileset,
        SCRATCH_BLOCK, SCRATCH_INFO, SCRATCH_OBJECT,
    },
    object::class_on,
};

/// Base of a path that is relative to the working directory (fcntl(2)).
const AT_FDCWD: i32 = -100;
/// Longest name of a directory entry, with its NUL (NAME_MAX + 1).
const NAME_BYTES: usize = 256;
/// Deepest directory whose path is kept whole.
const MAX_DEPTH: usize = 32;
/// Bytes of a path's text that are looked at.
const TEXT_BYTES: usize = 256;
/// Words that hold them.
const TEXT_WORDS: usize = TEXT_BYTES / 8;
/// Stands for the extension in the key of a directory itself, which is another set than its files without one: no name has
/// this character.
const DIRECTORY: [u64; 2] = [b'/' as u64, 0];
/// In what [`path_of`] gives: the path goes on.
const CUT_OFF: u64 = 1 << 32;
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

/// The extension of a name of `len` bytes: [`FilesetKey::ext`].
#[inline(always)]
fn extension(name: u64, len: u32) -> [u64; 2] {
    let tail = eight_before(name, len);
    if let Some(dot) = last_dot(tail, len) {
        return named_kind([after(tail, dot), 0]);
    }
    if len <= 8 {
        return [0; 2];
    }
    let before = eight_before(name, len - 8);
    match last_dot(before, len - 8) {
        None => [0; 2],
        Some(LAST_BYTE) => named_kind([tail, 0]),
        Some(dot) => named_kind([
            after(before, dot) | tail << (LAST_BYTE - dot),
            after(tail, dot),
        ]),
    }
}

/// Bits below the last byte of a word.
const LAST_BYTE: u32 = 56;

/// The last 8 of the first `len` bytes of a name, the last one highest; zeros where there are fewer.
#[inline(always)]
fn eight_before(name: u64, len: u32) -> u64 {
    // Names live in blocks of at least 32 bytes, so 8 can always be read.
    if len >= 8 {
        peek(name + u64::from(len) - 8, 0).unwrap_or(0)
    } else if len > 0 {
        peek::<u64>(name, 0).unwrap_or(0) << ((8 - len) * 8)
    } else {
        0
    }
}

/// Where the last dot is in the last 8 of `len` bytes: bits below it. A dot that a name begins with is no separator.
#[inline(always)]
fn last_dot(word: u64, len: u32) -> Option<u32> {
    let mut at = LAST_BYTE;
    loop {
        if (word >> at) & 0xff == u64::from(b'.') {
            let begins_with_it = len <= 8 && at == (8 - len) * 8;
            return if begins_with_it { None } else { Some(at) };
        }
        if at == 0 {
            return None;
        }
        at -= 8;
    }
}

/// What of a word is behind its byte at `dot`.
#[inline(always)]
fn after(word: u64, dot: u32) -> u64 {
    // In two steps, since nothing is behind the last byte.
    word >> dot >> 8
}

/// An extension that begins with a digit numbers files; it names no kind of them.
#[inline(always)]
fn named_kind(extension: [u64; 2]) -> [u64; 2] {
    if (extension[0] as u8).is_ascii_digit() {
        [0; 2]
    } else {
        extension
    }
}

/// What is told of a directory entry: its directory, that one's inode, and the extension; `dir` 0: no entry leads there.
///
/// # Safety
/// `dentry` is a typed `struct dentry` pointer, or null.
#[inline(always)]
pub unsafe fn key_of(key: &mut FilesetKey, dentry: *const core::ffi::c_void, directory: bool) {
    key.dir = 0;
    if dentry.is_null() {
        return;
    }
    // SAFETY: a chain of typed pointers.
    unsafe {
        let (dir, ext) = if directory {
            (dentry, DIRECTORY)
        } else {
            let name: u64 = member(dentry, offset!(dentry_name));
            let len: u32 = member(dentry, offset!(dentry_name_len));
            (member(dentry, offset!(dentry_parent)), extension(name, len))
        };
        if dir.is_null() {
            return;
        }
        key.ext = ext;
        key.inode = member(dir, offset!(dentry_inode));
        key.dir = dir as u64;
    }
}

/// As [`key_of`], of an entry of which only the address is known.
#[inline(always)]
pub fn key_from(key: &mut FilesetKey, blocks: &mut Blocks, dentry: u64, directory: bool) {
    key.dir = 0;
    let start = fact!(dentry_block);
    if !copy_block(dentry, start, &mut blocks.dentry) {
        return;
    }
    let entry = &blocks.dentry;
    (key.dir, key.inode, key.ext) = if directory {
        (
            dentry,
            in_block(entry, start, offset!(dentry_inode)),
            DIRECTORY,
        )
    } else {
        let parent: u64 = in_block(entry, start, offset!(dentry_parent));
        let name = in_block(entry, start, offset!(dentry_name));
        let len = in_block(entry, start, offset!(dentry_name_len));
        (
            parent,
            peek(parent, offset!(dentry_inode)).unwrap_or(0),
            extension(name, len),
        )
    };
}

/// The file set of the key in this CPU's [`SCRATCH_OBJECT`], which `found` is.
#[inline(always)]
pub fn of_key(found: *mut Described, directory: bool, tgid: u32) -> FilesetRef {
    // SAFETY: a per-CPU slot, of which `name_found` writes the object alone.
    let (key, superblock) = unsafe { (&(*found).key, (*found).superblock) };
    if key.dir == 0 {
        // Deleted, or never had a name.
        return unnamed(superblock, directory);
    }
    let known = KNOWN_FILESETS.get_ptr_mut((key.dir >> 6 ^ key.ext[0]) as u32 % KNOWN);
    // SAFETY: a per-CPU slot.
    let known = known.map(|known| unsafe { &mut *known });
    if let Some(known) = &known
        && known.key == *key
    {
        return known.set;
    }
    // SAFETY: the value is copied out at once and never changes.
    let set = match unsafe { FILESETS.get(key) } {
        Some(set) => *set,
        None => {
            let number = name_found(directory.into(), tgid);
            // SAFETY: as above.
            let object = unsafe { &(*found).object };
            FilesetRef {
                number,
                dev: object.dev,
                class: object.class,
                pad: 0,
            }
        }
    };
    if let Some(known) = known
        && set.number != NO_FILESET
    {
        *known = KnownFileset { key: *key, set };
    }
    set
}

#[inline(always)]
fn unnamed(superblock: u64, directory: bool) -> FilesetRef {
    let magic = peek(superblock, offset!(sb_magic)).unwrap_or(0);
    FilesetRef {
        number: NO_FILESET,
        dev: peek(superblock, offset!(sb_dev)).unwrap_or(0),
        class: class_on(magic, directory.into()),
        pad: 0,
    }
}

/// Gives a number to a file set that was not seen before, with the path of its directory: that of the key in this CPU's
/// [`SCRATCH_OBJECT`], where device and class are left. A global function: the verifier looks at it once.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn name_found(directory: u32, tgid: u32) -> u32 {
    let (Some(found), Some(info)) = (SCRATCH_OBJECT.get_ptr_mut(0), SCRATCH_INFO.get_ptr_mut(0))
    else {
        return NO_FILESET;
    };
    // SAFETY: per-CPU slots. The caller holds the key, which is read alone, and no object.
    let (key, superblock, object, info) = unsafe {
        (
            &(*found).key,
            (*found).superblock,
            &mut (*found).object,
            &mut *info,
        )
    };
    let mut set = unnamed(superblock, directory != 0);
    let named = u64::from(directory == 0);
    (info.ext[0], info.ext[1]) = (key.ext[0] * named, key.ext[1] * named);
    info.magic = peek(superblock, offset!(sb_magic)).unwrap_or(0);
    info.dev = set.dev;
    info.mnt_id = mount_id(key.mount);
    info.tgid = tgid;
    info.from_text = 0;
    info.dfd = 0;
    info.truncated = 0;
    let (used, truncated) = unpack(path_of(key.dir));
    info.truncated = truncated;
    info.path_len = used;
    publish(info, key, &mut set);
    (object.dev, object.class) = (set.dev, set.class);
    set.number
}

/// Writes the names from a directory's entry up to the file system's root into this CPU's [`SCRATCH_INFO`]. Gives the bytes
/// used, and in the upper half whether the path was cut off. A function of its own, so that the many ways out of the loop
/// meet at its end: the verifier would follow each through all that comes after.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn path_of(dir: u64) -> u64 {
    let (Some(info), Some(blocks)) = (SCRATCH_INFO.get_ptr_mut(0), SCRATCH_BLOCK.get_ptr_mut(0))
    else {
        return 0;
    };
    // SAFETY: per-CPU slots.
    let (info, block) = unsafe { (&mut *info, &mut (*blocks).dentry) };
    let start = fact!(dentry_block);
    let mut used = 0_usize;
    let mut at = dir;
    for _ in 0..MAX_DEPTH {
        if !copy_block(at, start, block) {
            return used as u64;
        }
        let parent: u64 = in_block(block, start, offset!(dentry_parent));
        if parent == 0 || parent == at {
            return used as u64;
        }
        let name: u64 = in_block(block, start, offset!(dentry_name));
        // Looked at right before it is used: 6.1 forgets what was found of a value that lies on the stack.
        let used_now = black_box(used);
        if used_now > PATH_BYTES - NAME_BYTES {
            break;
        }
        // SAFETY: `used_now` leaves room for NAME_BYTES.
        let n = unsafe {
            bpf_probe_read_kernel_str(
                info.path.as_mut_ptr().add(used_now).cast(),
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
    used as u64 | CUT_OFF
}

/// What [`path_of`] gave: bytes used, 1 when the path was cut off.
#[inline(always)]
fn unpack(path: u64) -> (u32, u32) {
    (path as u32, (path >> 32) as u32)
}

/// The file set of the path in argument `path` of a system call, relative to the descriptor before it.
///
/// # Safety
/// `regs` is a typed `struct pt_regs` pointer of the current task.
#[inline(always)]
pub unsafe fn of_call(regs: *const core::ffi::c_void, path: u8, tgid: u32) -> u32 {
    // SAFETY: as promised by the caller.
    let (text, dfd) = unsafe {
        let dfd = if path == 0 {
            AT_FDCWD
        } else {
            syscall_arg(regs, path - 1) as i32
        };
        (syscall_arg(regs, path), dfd)
    };
    fileset_of_text(text, dfd, tgid)
}

/// The file set of a path given as text: its directory part, relative to `dfd`. For calls that leave no
/// descriptor behind. A global function: the verifier looks at it once, not at every call.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn fileset_of_text(path: u64, dfd: i32, tgid: u32) -> u32 {
    let n = read_text(path);
    let Some(info) = SCRATCH_INFO.get_ptr_mut(0) else {
        return NO_FILESET;
    };
    if n == 0 {
        return NO_FILESET;
    }
    // SAFETY: a per-CPU slot.
    let info = unsafe { &mut *info };
    let mut dir_hash = info.ext[0];
    let ext = extension_of_text(info, n);
    let absolute = info.path[0] == b'/';
    if !absolute {
        dir_hash ^=
            (u64::from(tgid) << 32 | u64::from(dfd as u32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    let key = FilesetKey {
        dir: dir_hash,
        inode: 0,
        mount: 0,
        ext,
    };
    // SAFETY: the value is copied out at once and never changes.
    if let Some(set) = unsafe { FILESETS.get(&key) } {
        return set.number;
    }
    info.ext = ext;
    info.magic = 0;
    info.dev = 0;
    info.mnt_id = 0;
    info.tgid = tgid;
    info.dfd = dfd;
    info.from_text = 1;
    info.truncated = u32::from(n as usize >= TEXT_BYTES);
    let mut set = FilesetRef::default();
    publish(info, &key, &mut set);
    set.number
}

/// The extension of the name behind the directory part of a path of `n` bytes with its NUL; none of one that was cut off.
#[inline(always)]
fn extension_of_text(info: &FilesetInfo, n: u32) -> [u64; 2] {
    let directory = info.path_len as usize;
    let len = (n - 1).wrapping_sub(info.path_len);
    if directory >= TEXT_BYTES || len >= TEXT_BYTES as u32 || n as usize >= TEXT_BYTES {
        return [0; 2];
    }
    extension(info.path.as_ptr() as u64 + directory as u64, len)
}

/// Reads a path into this CPU's [`SCRATCH_INFO`], with the length of its directory part in `path_len` and a hash of that
/// part in `ext`. Gives its length with the NUL, 0 when it cannot be read. A function of its own, so that the many ways
/// through it meet at its end.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn read_text(path: u64) -> u32 {
    let Some(info) = SCRATCH_INFO.get_ptr_mut(0) else {
        return 0;
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
        return 0;
    }
    // Eight bytes at a time, and without a branch but for the end: each would double the paths that the verifier has to look at.
    let words = info.path.as_ptr().cast::<u64>();
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut dir_hash = hash;
    let mut dir_len = 0_u64;
    for i in 0..TEXT_WORDS {
        // SAFETY: the path is longer, and begins at a multiple of eight bytes.
        let word = u64::from_le(unsafe { words.add(i).read() });
        let ends = zero_bytes(word);
        let before_end = (ends & ends.wrapping_neg()).wrapping_sub(1);
        // The highest bit of the bytes up to the last slash, and whether there is one.
        let mut upto = zero_bytes(word ^ (EACH * u64::from(b'/'))) & before_end;
        upto |= upto >> 8;
        upto |= upto >> 16;
        upto |= upto >> 32;
        let upto = black_box(upto >> 7 & EACH);
        let found = upto & 1;
        let bytes = upto.wrapping_mul(EACH) >> 56;
        let hash_here = mixed(hash, word & upto.wrapping_mul(0xff));
        dir_hash = dir_hash.wrapping_add(hash_here.wrapping_sub(dir_hash).wrapping_mul(found));
        let len_here = (i as u64 * 8).wrapping_add(bytes);
        dir_len = dir_len.wrapping_add(len_here.wrapping_sub(dir_len).wrapping_mul(found));
        hash = mixed(hash, word);
        if ends != 0 {
            break;
        }
    }
    info.path_len = dir_len as u32;
    info.ext[0] = dir_hash;
    n as u32
}

/// One in each byte.
const EACH: u64 = u64::MAX / 0xff;

/// The highest bit of each byte that is zero.
#[inline(always)]
fn zero_bytes(word: u64) -> u64 {
    let low = EACH * 0x7f;
    !(((word & low) + low) | word | low)
}

/// A hash with eight bytes more, whose bits all depend on the ones before (the multipliers are those of splitmix64).
#[inline(always)]
fn mixed(hash: u64, word: u64) -> u64 {
    let mut mixed = (hash ^ word).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^= mixed >> 32;
    mixed = mixed.wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 29
}

/// Takes the next number for `set`; the description is in place before the key can be found.
#[inline(always)]
fn publish(info: &FilesetInfo, key: &FilesetKey, set: &mut FilesetRef) {
    let Some(count) = FILESET_COUNT.get_ptr_mut(0) else {
        return;
    };
    // SAFETY: a per-CPU slot. Each CPU numbers for itself, so that none needs to wait for another.
    let number = unsafe {
        *count += 1;
        *count << CPU_BITS | bpf_get_smp_processor_id() & ((1 << CPU_BITS) - 1)
    };
    if FILESET_INFO.insert(&number, info, 0).is_err() {
        emit::lost(Loss::FilesetsFull);
        return;
    }
    set.number = number;
    if FILESETS.insert(key, &*set, u64::from(BPF_NOEXIST)).is_err() {
        let _ = FILESET_INFO.remove(&number);
        set.number = NO_FILESET;
        // SAFETY: as in `of_key`. Another CPU was first, or the table is full.
        match unsafe { FILESETS.get(key) } {
            Some(first) => {
                (set.number, set.dev, set.class) = (first.number, first.dev, first.class);
            }
            None => emit::lost(Loss::FilesetsFull),
        }
    }
}
