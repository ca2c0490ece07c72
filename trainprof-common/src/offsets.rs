//! Offsets of kernel structures on the running kernel, resolved by user space from BTF.

/// An offset that the running kernel does not have.
pub const MISSING: u32 = u32::MAX;

macro_rules! offsets {
    ($($(#[$doc:meta])* $field:ident: $type:literal $path:literal $(| $alt_type:literal $alt:literal)* ;)*) => {
        /// Byte offsets, or [`MISSING`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub struct Offsets {
            $($(#[$doc])* pub $field: u32,)*
        }

        impl Offsets {
            /// Nothing known.
            pub const NONE: Self = Self { $($field: MISSING,)* };

            /// Resolves every offset; `find(structure, member path)` gives the byte offset where there is one.
            /// Calls `missing(field, structure, path)` for each that no name resolves.
            pub fn resolve(
                mut find: impl FnMut(&str, &str) -> Option<u32>,
                mut missing: impl FnMut(&'static str, &'static str, &'static str),
            ) -> Self {
                let mut offsets = Self::NONE;
                $(
                    offsets.$field = find($type, $path)
                        $(.or_else(|| find($alt_type, $alt)))*
                        .unwrap_or_else(|| {
                            missing(stringify!($field), $type, $path);
                            MISSING
                        });
                )*
                offsets
            }

            /// Every offset, in the order of the fields.
            pub const fn words(&self) -> [u32; Self::COUNT] {
                [$(self.$field,)*]
            }

            /// The opposite of [`Self::words`]; what is not there is [`MISSING`].
            pub fn from_words(words: &[u32]) -> Self {
                let mut words = words.iter().copied();
                Self { $($field: words.next().unwrap_or(MISSING),)* }
            }

            /// Each offset's name, structure and member there, in the order of the fields.
            pub const MEMBERS: [(&'static str, &'static str, &'static str); Self::COUNT] =
                [$((stringify!($field), $type, $path),)*];

            /// How many offsets there are.
            pub const COUNT: usize = [$(stringify!($field),)*].len();
        }
    };
}

offsets! {
    task_pid: "task_struct" "pid";
    task_tgid: "task_struct" "tgid";
    task_flags: "task_struct" "flags";
    task_comm: "task_struct" "comm";
    task_files: "task_struct" "files";
    task_mm: "task_struct" "mm";
    mm_brk: "mm_struct" "brk";
    task_min_flt: "task_struct" "min_flt";
    task_maj_flt: "task_struct" "maj_flt";
    task_exec_ns: "task_struct" "se.sum_exec_runtime";
    task_read_bytes: "task_struct" "ioac.read_bytes";
    task_write_bytes: "task_struct" "ioac.write_bytes";
    files_count: "files_struct" "count";
    files_fdt: "files_struct" "fdt";
    files_fd_array: "files_struct" "fd_array";
    fdt_max_fds: "fdtable" "max_fds";
    fdt_fd: "fdtable" "fd";
    file_inode: "file" "f_inode";
    file_dentry: "file" "f_path.dentry" | "file" "__f_path.dentry";
    file_mnt: "file" "f_path.mnt" | "file" "__f_path.mnt";
    dentry_parent: "dentry" "d_parent";
    dentry_name_len: "dentry" "d_name.len" | "dentry" "__d_name.len";
    dentry_name: "dentry" "d_name.name" | "dentry" "__d_name.name";
    dentry_inode: "dentry" "d_inode";
    dentry_alias: "dentry" "d_u.d_alias" | "dentry" "d_alias";
    inode_mode: "inode" "i_mode";
    inode_ino: "inode" "i_ino";
    inode_sb: "inode" "i_sb";
    inode_size: "inode" "i_size";
    inode_dentries: "inode" "i_dentry.first";
    sb_dev: "super_block" "s_dev";
    sb_magic: "super_block" "s_magic";
    mount_mnt: "mount" "mnt";
    mount_id: "mount" "mnt_id";
    folio_flags: "folio" "flags" | "page" "flags";
    folio_mapping: "folio" "mapping" | "page" "mapping";
    folio_nr_pages: "folio" "_nr_pages" | "folio" "_folio_nr_pages";
    mapping_host: "address_space" "host";
    kiocb_file: "io_kiocb" "file";
    kiocb_opcode: "io_kiocb" "opcode";
    kiocb_res: "io_kiocb" "cqe.res";
    task_signal: "task_struct" "signal";
    signal_oom_mm: "signal_struct" "oom_mm";
    inode_writers: "inode" "i_writecount";
}

/// Bytes that are read at once of `file`, `inode` and `dentry`.
pub const BLOCK_BYTES: usize = 128;

impl Offsets {
    /// The members that are read with one block each, by structure.
    fn blocks(&self) -> [[u32; 4]; 3] {
        [
            [
                self.file_inode,
                self.file_dentry,
                self.file_mnt,
                self.file_mnt,
            ],
            [
                self.inode_mode,
                self.inode_sb,
                self.inode_ino,
                self.inode_size,
            ],
            [
                self.dentry_parent,
                self.dentry_name_len,
                self.dentry_name,
                self.dentry_inode,
            ],
        ]
    }

    /// Whether every member is there that leads from a descriptor to what it refers to. Where one is missing no descriptor is
    /// looked up.
    pub fn tell_objects(&self) -> bool {
        let members = [
            self.task_files,
            self.files_fdt,
            self.fdt_max_fds,
            self.fdt_fd,
            self.file_inode,
            self.inode_mode,
            self.sb_magic,
        ];
        self.block_starts().is_some() && members.iter().all(|at| *at != MISSING)
    }

    /// Where the blocks of `file`, `inode` and `dentry` begin; `None` when the members of one lie further
    /// apart than [`BLOCK_BYTES`], or one is missing.
    pub fn block_starts(&self) -> Option<[u32; 3]> {
        let mut starts = [0; 3];
        for (start, members) in starts.iter_mut().zip(self.blocks()) {
            let (mut low, mut high) = (MISSING, 0);
            for at in members {
                if at == MISSING {
                    return None;
                }
                low = if at < low { at } else { low };
                high = if at > high { at } else { high };
            }
            if (high - low) as usize + 8 > BLOCK_BYTES {
                return None;
            }
            *start = low;
        }
        Some(starts)
    }
}

/// Facts of the running kernel that are no offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct KernelFacts {
    /// Byte of `task_struct` that holds the bit-field `in_iowait`, or [`MISSING`].
    pub iowait_byte: u32,
    /// Mask of that bit in its byte.
    pub iowait_mask: u32,
    /// Bit number of `PG_head` in a folio's flags, or [`MISSING`].
    pub page_head_bit: u32,
    /// Bytes in a page.
    pub page_size: u32,
    /// First bytes of the blocks: [`Offsets::block_starts`].
    pub file_block: u32,
    pub inode_block: u32,
    pub dentry_block: u32,
    /// 1 where [`Offsets::tell_objects`], else 0.
    pub objects: u32,
}
crate::wire!(KernelFacts, 32);

// SAFETY: `u32` fields only.
unsafe impl crate::Wire for Offsets {}
