//! From a descriptor to what it refers to, out of the kernel's own tables: right for descriptors that
//! were opened before the watch, inherited, duplicated or passed over a socket.

use core::ffi::c_void;

use trainprof_common::{
    offsets::MISSING,
    op::Class,
    thread::{Described, FD_CACHE, Object, ThreadState, USES_RING},
};

use crate::{
    fileset,
    kernel::{copy_block, current_task, fact, in_block, member, offset, peek},
    maps::{Blocks, SCRATCH_BLOCK, SCRATCH_OBJECT},
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

/// The `struct files_struct` of the current task; may be null.
#[inline(always)]
fn files() -> *const c_void {
    // SAFETY: a typed pointer from the current task.
    unsafe { member(current_task(), offset!(task_files)) }
}

/// Whether the current task alone uses its table of descriptors: then nobody else changes it. 1 or 0.
#[inline(always)]
fn alone(files: *const c_void, state: &ThreadState) -> u32 {
    if offset!(files_count) == MISSING || state.flags & USES_RING != 0 || files.is_null() {
        return 0;
    }
    // SAFETY: a typed pointer.
    u32::from(unsafe { member::<u32>(files, offset!(files_count)) } == 1)
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

/// What is known of a descriptor without a look at the kernel's tables.
#[inline(always)]
fn trusted(state: &ThreadState, alone: u32, fd: u64) -> Option<Object> {
    let slot = &state.fds[fd as usize & (FD_CACHE - 1)];
    (alone & slot.trusted != 0 && slot.fd == fd as u32).then_some(slot.object)
}

/// What a descriptor of the current task refers to; class `Unknown` when it refers to nothing.
#[inline(always)]
pub fn resolve(state: &mut ThreadState, fd: u64) -> Object {
    let files = files();
    let alone = alone(files, state);
    if let Some(object) = trusted(state, alone, fd) {
        return object;
    }
    // SAFETY: a typed pointer.
    let file = unsafe { file_of(files, fd) };
    if file == 0 {
        return Object::default();
    }
    let inode: u64 = peek(file, offset!(file_inode)).unwrap_or(0);
    let slot = &mut state.fds[fd as usize & (FD_CACHE - 1)];
    slot.fd = fd as u32;
    slot.trusted = alone;
    if slot.file == file && slot.inode == inode {
        return slot.object;
    }
    let object = describe(file, state.tgid);
    slot.file = file;
    slot.inode = inode;
    slot.object = object;
    object
}

/// What a descriptor of the current task that was just opened refers to, and the size of the file in bytes.
#[inline(always)]
pub fn resolve_opened(state: &mut ThreadState, fd: u64) -> Described {
    let files = files();
    // SAFETY: a typed pointer.
    let file = unsafe { file_of(files, fd) };
    if file == 0 {
        return Described::default();
    }
    object_of_file(file, state.tgid);
    let described = SCRATCH_OBJECT.get(0).copied().unwrap_or_default();
    let trusted = alone(files, state);
    let slot = &mut state.fds[fd as usize & (FD_CACHE - 1)];
    slot.fd = fd as u32;
    slot.trusted = trusted;
    slot.file = file;
    slot.inode = described.inode;
    slot.object = described.object;
    described
}

/// What a descriptor that the current task has just closed referred to; class `Unknown` when that is not sure.
#[inline(always)]
pub fn resolve_closed(state: &mut ThreadState, fd: u64) -> Object {
    let alone = alone(files(), state);
    trusted(state, alone, fd).unwrap_or_default()
}

/// A descriptor may refer to something else from now on.
#[inline(always)]
pub fn forget(state: &mut ThreadState, fd: u64) {
    state.fds[fd as usize & (FD_CACHE - 1)].trusted = 0;
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

// The next two leave their result in per-CPU scratch and take nothing but numbers: as global functions they
// are verified once, not at every call.

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn object_of_file(file: u64, tgid: u32) -> u32 {
    let (Some(out), Some(blocks)) = (SCRATCH_OBJECT.get_ptr_mut(0), SCRATCH_BLOCK.get_ptr_mut(0))
    else {
        return 0;
    };
    // SAFETY: per-CPU slots.
    let (out, blocks) = unsafe { (&mut *out, &mut *blocks) };
    let start = fact!(file_block);
    if !copy_block(file, start, &mut blocks.file) {
        out.object.class = 0;
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
        out.object.class = 0;
        return 0;
    }
    let mode: u16 = in_block(&blocks.inode, start, offset!(inode_mode));
    let superblock: u64 = in_block(&blocks.inode, start, offset!(inode_sb));
    out.object.id = in_block(&blocks.inode, start, offset!(inode_ino));
    out.size = in_block(&blocks.inode, start, offset!(inode_size));
    out.inode = inode;
    out.object.dev = 0;
    out.object.fileset = 0;
    let kind = mode & S_IFMT;
    if kind != S_IFREG && kind != S_IFDIR {
        out.object.class = match kind {
            0o010_000 => Class::Pipe,
            0o140_000 => Class::Socket,
            0o020_000 | 0o060_000 => Class::Device,
            _ => Class::Anon,
        } as u32;
        return out.object.class;
    }
    let set = fileset::of_dentry(blocks, dentry, superblock, mount, kind == S_IFDIR, tgid);
    out.object.fileset = set.number;
    out.object.dev = set.dev;
    out.object.class = set.class;
    set.class
}

/// The class of regular files, or of directories, on a file system.
#[inline(always)]
pub fn class_on(fs: u64, directory: bool) -> Class {
    match fs {
        magic::ANON_INODE => Class::Anon,
        magic::PROC
        | magic::SYSFS
        | magic::CGROUP
        | magic::CGROUP2
        | magic::DEBUGFS
        | magic::TRACEFS
        | magic::BPF => Class::Proc,
        _ if directory => Class::Directory,
        magic::TMPFS | magic::HUGETLBFS => Class::Tmpfs,
        _ => Class::File,
    }
}
