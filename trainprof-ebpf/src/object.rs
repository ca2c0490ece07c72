//! From a descriptor to what it refers to, out of the kernel's own tables: right for descriptors that
//! were opened before the watch, inherited, duplicated or passed over a socket.

use core::{ffi::c_void, hint::black_box, ptr::null};

use trainprof_common::{
    offsets::MISSING,
    op::Class,
    thread::{CachedFd, Described, FD_CACHE, KEEPS, Object, ThreadState, USES_RING},
};

use crate::{
    fileset,
    kernel::{copy_block, current_task, fact, in_block, member, offset, peek},
    maps::{Blocks, Control, DESCRIPTORS, SCRATCH_BLOCK, SCRATCH_OBJECT, control},
};

/// Kinds of inodes (inode(7)).
const S_IFMT: u16 = 0o170_000;
const S_IFREG: u16 = 0o100_000;
const S_IFDIR: u16 = 0o040_000;

/// Magic numbers of statfs(2).
mod magic {
    pub const TMPFS: u64 = 0x0102_1994;
    pub const HUGETLBFS: u64 = 0x9584_58f6;
    pub const PROC: u64 = 0x9fa0;
    pub const SYSFS: u64 = 0x6265_6572;
    pub const CGROUP: u64 = 0x0027_e0eb;
    pub const CGROUP2: u64 = 0x6367_7270;
    pub const DEBUGFS: u64 = 0x6462_6720;
    pub const TRACEFS: u64 = 0x7472_6163;
    pub const BPF: u64 = 0xcafe_4a11;
    pub const ANON_INODE: u64 = 0x0904_1934;
}

/// Whether the running kernel has every member that leads from a descriptor or an inode to what is told of it. To the verifier it
/// is a constant: where one is missing, what reads it is never looked at.
#[inline(always)]
pub fn are_told() -> bool {
    fact!(objects) != 0
}

/// The table of descriptors (`struct files_struct`) of the current task; may be null.
#[inline(always)]
fn files() -> *const c_void {
    // SAFETY: a typed pointer.
    unsafe { member(current_task(), offset!(task_files)) }
}

/// Whether the current task alone uses its table of descriptors. 1 or 0.
#[inline(always)]
fn alone(files: *const c_void) -> u32 {
    if offset!(files_count) == MISSING || files.is_null() {
        return 0;
    }
    // SAFETY: a typed pointer.
    u32::from(unsafe { member::<u32>(files, offset!(files_count)) } == 1)
}

/// Until when a new entry of the cache may be trusted: while [`Control::CALLS`] is this number; 0: not at all. `alone`: what
/// that says.
#[inline(always)]
fn may_trust(state: &ThreadState, alone: u32) -> u32 {
    if state.flags & USES_RING != 0 {
        0
    } else {
        alone * control(Control::CALLS) as u32
    }
}

/// The `struct file` behind a descriptor, or 0.
///
/// # Safety
/// `files` is a typed `struct files_struct` pointer.
#[inline(always)]
unsafe fn file_of(files: *const c_void, fd: u64) -> u64 {
    if files.is_null() {
        return 0;
    }
    // SAFETY: a chain of typed pointers that starts at the current task.
    let (max_fds, table): (u32, u64) = unsafe {
        let fdt: *const c_void = member(files, offset!(files_fdt));
        if fdt.is_null() {
            return 0;
        }
        (
            member(fdt, offset!(fdt_max_fds)),
            member(fdt, offset!(fdt_fd)),
        )
    };
    // A system call looks at the lower half of the register.
    let fd = fd & 0xffff_ffff;
    if fd >= u64::from(max_fds) {
        return 0;
    }
    peek(table + fd * 8, 0).unwrap_or(0)
}

/// Descriptors below this are looked up in a process's first table without a helper.
const NEAR: u64 = 16;

/// The `struct file` behind a low descriptor of a process that still uses the table it began with (`fd_array`): a typed
/// pointer, so that what it leads to takes plain loads. Null for all others.
///
/// # Safety
/// `files` is a typed `struct files_struct` pointer that is not null.
#[inline(always)]
unsafe fn near_file(files: *const c_void, fd: u64) -> *const c_void {
    let first = offset!(files_fd_array);
    if first == MISSING || fd >= NEAR {
        return null();
    }
    // SAFETY: a chain of typed pointers.
    unsafe {
        let fdt: *const c_void = member(files, offset!(files_fdt));
        if fdt.is_null() {
            return null();
        }
        let table: u64 = member(fdt, offset!(fdt_fd));
        if table != black_box(files.byte_add(first as usize)) as u64 {
            return null();
        }
        // A load at a variable offset is refused on typed pointers, hence one load for each descriptor.
        macro_rules! load {
            ($($n:literal)*) => {
                match fd {
                    $($n => member(files, first + black_box($n * 8)),)*
                    _ => null(),
                }
            };
        }
        load!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    }
}

/// What is known of a descriptor without a look at the kernel's tables: the thread was alone with its table when the entry
/// was made, and whatever may have changed since made us forget it ([`forget`], [`forget_all`]).
#[inline(always)]
fn trusted(state: &ThreadState, fd: u64) -> Option<Object> {
    let slot = &state.fds[fd as usize & (FD_CACHE - 1)];
    (is_sure(slot) && slot.fd == fd as u32).then_some(slot.object)
}

/// Whether what a slot says is sure still.
#[inline(always)]
fn is_sure(slot: &CachedFd) -> bool {
    slot.trusted != 0 && u64::from(slot.trusted) == control(Control::CALLS)
}

/// What a descriptor of the current task refers to; class `Unknown` when it refers to nothing.
#[inline(always)]
pub fn resolve(state: &mut ThreadState, fd: u64) -> Object {
    if let Some(object) = trusted(state, fd) {
        return object;
    }
    let alone = find_file(fd);
    let (file, inode) = SCRATCH_OBJECT
        .get(0)
        .map_or((0, 0), |found| (found.file, found.inode));
    if file == 0 {
        return Object::default();
    }
    let (trust, tgid) = (may_trust(state, alone), state.tgid);
    let slot = take_slot(state, fd);
    slot.fd = fd as u32;
    slot.trusted = trust;
    if slot.file == file && slot.inode == inode {
        return slot.object;
    }
    let object = describe(file, tgid);
    slot.file = file;
    slot.inode = inode;
    slot.object = object;
    if is_closed_as_file(&object) {
        // Another thread may have opened it, or this one before its slot was needed.
        state.flags |= KEEPS;
    }
    object
}

/// The address of the inode that a descriptor of the current task leads to; 0: none.
#[inline(always)]
pub fn inode_of(state: &ThreadState, fd: u64) -> u64 {
    if trusted(state, fd).is_some() {
        return state.fds[fd as usize & (FD_CACHE - 1)].inode;
    }
    find_file(fd);
    SCRATCH_OBJECT
        .get(0)
        .map_or(0, |found| if found.file == 0 { 0 } else { found.inode })
}

/// What a descriptor of the current task that was just opened refers to, and the size of the file in bytes.
#[inline(always)]
pub fn resolve_opened(state: &mut ThreadState, fd: u64) -> (Object, u64) {
    let alone = object_of_opened(fd, state.tgid);
    let Some(described) = SCRATCH_OBJECT.get(0) else {
        return (Object::default(), 0);
    };
    if described.file == 0 {
        return (Object::default(), 0);
    }
    let (trust, tgid) = (may_trust(state, alone), state.tgid);
    let slot = take_slot(state, fd);
    slot.fd = fd as u32;
    slot.trusted = trust;
    slot.file = described.file;
    slot.inode = described.inode;
    slot.object = described.object;
    if alone == 0 && is_closed_as_file(&described.object) {
        // Another thread may close it.
        keep(tgid, fd as u32, &described.object);
    }
    (described.object, described.size)
}

/// The slot of the cache for a descriptor. What another one in it refers to is kept elsewhere, as long as that is sure: it is still to be closed.
#[inline(always)]
fn take_slot(state: &mut ThreadState, fd: u64) -> &mut CachedFd {
    let slot = &mut state.fds[fd as usize & (FD_CACHE - 1)];
    if slot.fd != fd as u32 && is_sure(slot) && is_closed_as_file(&slot.object) {
        state.flags |= KEEPS;
        keep(state.tgid, slot.fd, &slot.object);
    }
    slot
}

/// Whether closing such an object counts.
#[inline(always)]
fn is_closed_as_file(object: &Object) -> bool {
    object.class == Class::File as u32
        || object.class == Class::Tmpfs as u32
        || object.class == Class::Directory as u32
}

#[inline(always)]
fn keep(tgid: u32, fd: u32, object: &Object) {
    let place = u64::from(object.fileset) << 32 | u64::from(object.dev);
    keep_descriptor(kept_as(tgid, fd), object.id, place, object.class);
}

/// Key of [`DESCRIPTORS`].
#[inline(always)]
fn kept_as(tgid: u32, fd: u32) -> u64 {
    u64::from(tgid) << 32 | u64::from(fd)
}

/// What a descriptor that the current task has just closed referred to: as the task last used it while it alone had its table, or as it was
/// kept when a thread of the process opened it or needed its slot for another one; else as the task last used it. Class `Unknown` where
/// nothing tells. The kernel's table does not know any more; another thread of the process may have put something else there meanwhile.
#[inline(always)]
pub fn resolve_closed(state: &mut ThreadState, fd: u64) -> Object {
    let slot = &state.fds[fd as usize & (FD_CACHE - 1)];
    let own = slot.fd == fd as u32;
    if own && is_sure(slot) {
        return slot.object;
    }
    // SAFETY: copied at once.
    let kept = unsafe { DESCRIPTORS.get(&kept_as(state.tgid, fd as u32)) };
    match kept {
        // Calls that were not seen may have closed what was kept before them.
        Some(kept) if u64::from(kept.pad) == control(Control::CALLS) => Object { pad: 0, ..*kept },
        _ if own => slot.object,
        _ => Object::default(),
    }
}

/// A descriptor of the current task was closed: its slot is given a number that is looked up in another one, and what was kept of it is
/// dropped.
#[inline(always)]
pub fn closed(state: &mut ThreadState, fd: u64) {
    let slot = &mut state.fds[fd as usize & (FD_CACHE - 1)];
    let own = slot.fd == fd as u32;
    // Nobody has kept what a thread that was alone opened and has still in its slot.
    let kept = !own || !is_sure(slot) || state.flags & KEEPS != 0;
    if own {
        slot.fd = !(fd as u32);
        slot.trusted = 0;
    }
    if kept {
        drop_closed(fd, state.tgid);
    }
}

/// A descriptor of the current task refers to something else from now on.
#[inline(always)]
pub fn replaced(state: &mut ThreadState, fd: u64) {
    let slot = &mut state.fds[fd as usize & (FD_CACHE - 1)];
    if slot.fd == fd as u32 {
        slot.fd = !(fd as u32);
        slot.trusted = 0;
    }
    let _ = DESCRIPTORS.remove(&kept_as(state.tgid, fd as u32));
}

/// So may each.
#[inline(always)]
pub fn forget_all(state: &mut ThreadState) {
    for slot in &mut state.fds {
        slot.trusted = 0;
    }
}

/// What a `struct file` refers to.
#[inline(always)]
pub fn describe(file: u64, tgid: u32) -> Object {
    object_of_file(file, tgid);
    described_object()
}

/// What an inode refers to when no `struct file` is at hand (page-cache fills).
#[inline(always)]
pub fn describe_inode(inode: u64, tgid: u32) -> Object {
    object_of_inode(inode, tgid);
    described_object()
}

/// The object that the next two found last.
#[inline(always)]
fn described_object() -> Object {
    SCRATCH_OBJECT
        .get(0)
        .map_or(Object::default(), |described| described.object)
}

// Global functions take numbers: they are verified once, not at every call.

/// Keeps what a descriptor refers to; `place`: file set and device. Always 0.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn keep_descriptor(key: u64, id: u64, place: u64, class: u32) -> u32 {
    let object = Object {
        id,
        dev: place as u32,
        fileset: (place >> 32) as u32,
        class,
        // Until when it counts.
        pad: control(Control::CALLS) as u32,
    };
    let _ = DESCRIPTORS.insert(&key, &object, 0);
    0
}

/// Drops what was kept of a descriptor of the current task that was closed, unless another thread has opened one of this number since: that
/// one's is to be kept. Always 0.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn drop_closed(fd: u64, tgid: u32) -> u32 {
    find_file(fd);
    if SCRATCH_OBJECT.get(0).is_some_and(|found| found.file == 0) {
        let _ = DESCRIPTORS.remove(&kept_as(tgid, fd as u32));
    }
    0
}

// The next ones leave their result in per-CPU scratch and take nothing but numbers: as global functions they
// are verified once, not at every call.

/// Finds the `struct file` behind a descriptor of the current task, and its inode; none: 0. Gives [`alone`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn find_file(fd: u64) -> u32 {
    let Some(out) = SCRATCH_OBJECT.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: a per-CPU slot.
    let out = unsafe { &mut *out };
    out.file = 0;
    if !are_told() {
        return 0;
    }
    let files = files();
    if files.is_null() {
        return 0;
    }
    // First of all: who shared the table a moment ago may have put another file there.
    let alone = alone(files);
    // SAFETY: typed pointers.
    unsafe {
        let near = near_file(files, fd & 0xffff_ffff);
        if near.is_null() {
            out.file = file_of(files, fd);
            out.inode = peek(out.file, offset!(file_inode)).unwrap_or(0);
        } else {
            out.inode = member(near, offset!(file_inode));
            out.file = near as u64;
        }
    }
    alone
}

/// What a descriptor that was just opened refers to; nothing: its file is 0. Gives [`alone`].
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn object_of_opened(fd: u64, tgid: u32) -> u32 {
    let Some(out) = SCRATCH_OBJECT.get_ptr_mut(0) else {
        return 0;
    };
    // SAFETY: a per-CPU slot.
    let out = unsafe { &mut *out };
    out.file = 0;
    if !are_told() {
        return 0;
    }
    let files = files();
    if files.is_null() {
        return 0;
    }
    // As in `find_file`.
    let alone = alone(files);
    // SAFETY: a chain of typed pointers.
    unsafe {
        let file = near_file(files, fd & 0xffff_ffff);
        if file.is_null() {
            let file = file_of(files, fd);
            out.file = file;
            if file != 0 {
                object_of_file(file, tgid);
            }
            return alone;
        }
        let inode: *const c_void = member(file, offset!(file_inode));
        let dentry: *const c_void = member(file, offset!(file_dentry));
        if inode.is_null() {
            return 0;
        }
        out.file = file as u64;
        out.inode = inode as u64;
        out.object.id = member(inode, offset!(inode_ino));
        out.size = member(inode, offset!(inode_size));
        out.superblock = member(inode, offset!(inode_sb));
        out.key.mount = member(file, offset!(file_mnt));
        let mode: u16 = member(inode, offset!(inode_mode));
        if is_set(mode) {
            fileset::key_of(&mut out.key, dentry, mode & S_IFMT == S_IFDIR);
        }
        describe_found(mode.into(), tgid);
        alone
    }
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn object_of_file(file: u64, tgid: u32) -> u32 {
    let (Some(out), Some(blocks)) = (SCRATCH_OBJECT.get_ptr_mut(0), SCRATCH_BLOCK.get_ptr_mut(0))
    else {
        return 0;
    };
    // SAFETY: per-CPU slots.
    let (out, blocks) = unsafe { (&mut *out, &mut *blocks) };
    if !are_told() {
        out.object = Object::default();
        return 0;
    }
    let start = fact!(file_block);
    if !copy_block(file, start, &mut blocks.file) {
        out.object = Object::default();
        return 0;
    }
    let inode: u64 = in_block(&blocks.file, start, offset!(file_inode));
    let dentry: u64 = in_block(&blocks.file, start, offset!(file_dentry));
    let mount: u64 = in_block(&blocks.file, start, offset!(file_mnt));
    describe_parts(out, blocks, inode, dentry, mount, tgid)
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn object_of_inode(inode: u64, tgid: u32) -> u32 {
    let (Some(out), Some(blocks)) = (SCRATCH_OBJECT.get_ptr_mut(0), SCRATCH_BLOCK.get_ptr_mut(0))
    else {
        return 0;
    };
    // SAFETY: per-CPU slots.
    let (out, blocks) = unsafe { (&mut *out, &mut *blocks) };
    if !are_told() {
        out.object = Object::default();
        return 0;
    }
    let alias: u64 = peek(inode, offset!(inode_dentries)).unwrap_or(0);
    let dentry = if alias == 0 {
        0
    } else {
        alias - u64::from(offset!(dentry_alias))
    };
    describe_parts(out, blocks, inode, dentry, 0, tgid)
}

#[inline(always)]
fn describe_parts(
    out: &mut Described,
    blocks: &mut Blocks,
    inode: u64,
    dentry: u64,
    mount: u64,
    tgid: u32,
) -> u32 {
    let start = fact!(inode_block);
    if !copy_block(inode, start, &mut blocks.inode) {
        out.object = Object::default();
        return 0;
    }
    let mode: u16 = in_block(&blocks.inode, start, offset!(inode_mode));
    out.superblock = in_block(&blocks.inode, start, offset!(inode_sb));
    out.object.id = in_block(&blocks.inode, start, offset!(inode_ino));
    out.size = in_block(&blocks.inode, start, offset!(inode_size));
    out.inode = inode;
    out.key.mount = mount;
    if is_set(mode) {
        fileset::key_from(&mut out.key, blocks, dentry, mode & S_IFMT == S_IFDIR);
    }
    describe_found(mode.into(), tgid)
}

/// Whether inodes of that mode belong to a file set.
#[inline(always)]
fn is_set(mode: u16) -> bool {
    mode & S_IFMT == S_IFREG || mode & S_IFMT == S_IFDIR
}

/// Class and file set of what was found. By now addresses lie in a map: to the verifier they are numbers like any other.
#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn describe_found(mode: u32, tgid: u32) -> u32 {
    let Some(out) = SCRATCH_OBJECT.get_ptr_mut(0) else {
        return 0;
    };
    let mode = mode as u16;
    let (fileset, dev, class) = if is_set(mode) {
        let set = fileset::of_key(out, mode & S_IFMT == S_IFDIR, tgid);
        (set.number, set.dev, set.class)
    } else {
        let class = match mode & S_IFMT {
            0o010_000 => Class::Pipe,
            0o140_000 => Class::Socket,
            0o020_000 | 0o060_000 => Class::Device,
            _ => Class::Anon,
        };
        (0, 0, class as u32)
    };
    // SAFETY: a per-CPU slot.
    let object = unsafe { &mut (*out).object };
    (object.fileset, object.dev, object.class) = (fileset, dev, class);
    class
}

/// The class of regular files, or of directories, on a file system, by its number.
#[inline(never)]
#[unsafe(no_mangle)]
pub extern "C" fn class_on(fs: u64, directory: u32) -> u32 {
    let class = match fs {
        magic::ANON_INODE => Class::Anon,
        magic::PROC
        | magic::SYSFS
        | magic::CGROUP
        | magic::CGROUP2
        | magic::DEBUGFS
        | magic::TRACEFS
        | magic::BPF => Class::Proc,
        _ if directory != 0 => Class::Directory,
        magic::TMPFS | magic::HUGETLBFS => Class::Tmpfs,
        _ => Class::File,
    };
    class as u32
}
