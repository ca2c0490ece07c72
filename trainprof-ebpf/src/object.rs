//! From a descriptor to what it refers to, out of the kernel's own tables: right for descriptors that
//! were opened before the watch, inherited, duplicated or passed over a socket.

use core::ffi::c_void;

use trainprof_common::{
    op::Class,
    thread::{FD_CACHE, Object, ThreadState},
};

use crate::{
    fileset,
    kernel::{current_task, member, offset, peek},
    maps::SCRATCH_OBJECT,
};

const S_IFMT: u16 = 0o170_000;

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

/// The `struct file` behind a descriptor of the current task, or 0.
#[inline(always)]
fn file_of(fd: u64) -> u64 {
    // SAFETY: a chain of typed pointers that starts at the current task.
    let (max_fds, table): (u32, u64) = unsafe {
        let files: *const c_void = member(current_task(), offset!(task_files));
        if files.is_null() {
            return 0;
        }
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

/// What a descriptor of the current task refers to; class `Unknown` when it refers to nothing.
#[inline(always)]
pub fn resolve(state: &mut ThreadState, fd: u64) -> Object {
    let file = file_of(fd);
    if file == 0 {
        return Object::default();
    }
    let inode: u64 = peek(file, offset!(file_inode)).unwrap_or(0);
    let slot = &mut state.fds[fd as usize & (FD_CACHE - 1)];
    if slot.file == file && slot.inode == inode {
        return slot.object;
    }
    let object = describe(file, inode, state.tgid);
    slot.file = file;
    slot.inode = inode;
    slot.object = object;
    object
}

/// Size in bytes of the file behind a descriptor that was just resolved.
#[inline(always)]
pub fn cached_size(state: &ThreadState, fd: u64) -> u64 {
    let slot = &state.fds[fd as usize & (FD_CACHE - 1)];
    peek(slot.inode, offset!(inode_size)).unwrap_or(0)
}

/// What a `struct file` refers to.
#[inline(always)]
pub fn describe(file: u64, inode: u64, tgid: u32) -> Object {
    object_of_file(file, inode, tgid);
    described()
}

/// What an inode refers to when no `struct file` is at hand (page-cache fills).
#[inline(always)]
pub fn describe_inode(inode: u64, tgid: u32) -> Object {
    object_of_inode(inode, tgid);
    described()
}

#[inline(always)]
fn described() -> Object {
    SCRATCH_OBJECT.get(0).copied().unwrap_or_default()
}

#[inline(always)]
fn put(object: &Object) -> u32 {
    if let Some(slot) = SCRATCH_OBJECT.get_ptr_mut(0) {
        // SAFETY: a per-CPU slot.
        unsafe { *slot = *object };
    }
    object.class
}

// The next two leave their result in per-CPU scratch and take nothing but numbers: as global functions they
// are verified once, not at every call.

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn object_of_file(file: u64, inode: u64, tgid: u32) -> u32 {
    let mode: u16 = peek(inode, offset!(inode_mode)).unwrap_or(0);
    let superblock: u64 = peek(inode, offset!(inode_sb)).unwrap_or(0);
    let fs: u64 = peek(superblock, offset!(sb_magic)).unwrap_or(0);
    let class = classify(mode, fs);
    let mut object = Object {
        id: peek(inode, offset!(inode_ino)).unwrap_or(0),
        dev: peek(superblock, offset!(sb_dev)).unwrap_or(0),
        fileset: 0,
        class: class as u32,
        pad: 0,
    };
    if matches!(class, Class::File | Class::Directory | Class::Tmpfs) {
        let dentry: u64 = peek(file, offset!(file_dentry)).unwrap_or(0);
        let mount: u64 = peek(file, offset!(file_mnt)).unwrap_or(0);
        object.fileset = fileset::of_dentry(
            dentry,
            class,
            object.dev,
            fs,
            fileset::mount_id(mount),
            tgid,
        );
    }
    put(&object)
}

#[inline(never)]
#[unsafe(no_mangle)]
extern "C" fn object_of_inode(inode: u64, tgid: u32) -> u32 {
    let mode: u16 = peek(inode, offset!(inode_mode)).unwrap_or(0);
    let superblock: u64 = peek(inode, offset!(inode_sb)).unwrap_or(0);
    let fs: u64 = peek(superblock, offset!(sb_magic)).unwrap_or(0);
    let class = classify(mode, fs);
    let mut object = Object {
        id: peek(inode, offset!(inode_ino)).unwrap_or(0),
        dev: peek(superblock, offset!(sb_dev)).unwrap_or(0),
        fileset: 0,
        class: class as u32,
        pad: 0,
    };
    let alias: u64 = peek(inode, offset!(inode_dentries)).unwrap_or(0);
    if alias != 0 && matches!(class, Class::File | Class::Tmpfs) {
        let dentry = alias - u64::from(offset!(dentry_alias));
        object.fileset = fileset::of_dentry(dentry, class, object.dev, fs, 0, tgid);
    }
    put(&object)
}

#[inline(always)]
fn classify(mode: u16, fs: u64) -> Class {
    match mode & S_IFMT {
        0o010_000 => Class::Pipe,
        0o140_000 => Class::Socket,
        0o020_000 | 0o060_000 => Class::Device,
        kind @ (0o100_000 | 0o040_000) => match fs {
            magic::ANON_INODE => Class::Anon,
            magic::PROC
            | magic::SYSFS
            | magic::CGROUP
            | magic::CGROUP2
            | magic::DEBUGFS
            | magic::TRACEFS
            | magic::BPF => Class::Proc,
            _ if kind == 0o040_000 => Class::Directory,
            magic::TMPFS | magic::HUGETLBFS => Class::Tmpfs,
            _ => Class::File,
        },
        _ => Class::Anon,
    }
}
