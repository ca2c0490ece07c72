//! Names of functions: by blazesym, and of large files, which it would take tens of megabytes for (PyTorch's: 45), by the table that sampled
//! places are named by.

use std::{collections::BTreeMap, fs::File, os::fd::AsRawFd, path::PathBuf, sync::Arc};

use blazesym::symbolize::{
    Input, Symbolizer,
    source::{Elf, Source},
};

use super::worker::Named;
use crate::{
    demangle::demangled,
    record::fact::SourceLine,
    source::places::{
        class::{self, Flavour},
        symbols::{Index, Module, through_root},
        tables::Shared,
    },
};

/// Larger files have a table of ours, and no lines: their debugging information would take more memory than all the rest.
const LARGE: u64 = 32 << 20;
/// Bytes of such tables that are kept.
const MAX_TABLES: usize = 12 << 20;
/// Files whose tables are kept at once, by their number and their size together; beyond that all are forgotten.
const MAX_FILES: usize = 128;
const MAX_BYTES: u64 = 2 << 30;
/// Longer names are cut: templates of C++ have names of many kilobytes.
const MAX_NAME: usize = 240;

/// Looks names up, and keeps what it read.
pub struct Names {
    symbolizer: Symbolizer,
    files: BTreeMap<u32, Option<Opened>>,
    bytes: u64,
    tables: usize,
    shared: Shared,
}

/// Where names are found.
enum Opened {
    /// An open file: a path through /proc ends with its process, a descriptor does not.
    File(File),
    Table(Arc<Index>),
}

impl Default for Names {
    fn default() -> Self {
        Self {
            symbolizer: Symbolizer::builder()
                .enable_auto_reload(false)
                .enable_inlined_fns(false)
                // Ours would be another host's for a process in a container.
                .set_debug_dirs(Some(std::iter::empty::<PathBuf>()))
                .build(),
            files: BTreeMap::new(),
            bytes: 0,
            tables: 0,
            shared: Shared::default(),
        }
    }
}

impl Names {
    /// Looks into tables that others use as well.
    pub fn new(shared: Shared) -> Self {
        Self {
            shared,
            ..Self::default()
        }
    }

    /// Names the place at a module's offset, as process `pid` sees the module.
    pub fn find(&mut self, pid: u32, number: u32, module: &Module, offset: u64) -> Named {
        let flavour = Flavour::of_name(&module.name);
        let mut named = Named {
            module: Some(module.name.clone()).filter(|name| !name.is_empty()),
            class: class::of_module(flavour),
            ..Named::default()
        };
        self.open(pid, number, module);
        let path = match self.files.get(&number) {
            Some(Some(Opened::File(file))) => {
                PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()))
            }
            Some(Some(Opened::Table(table))) => {
                let found = table.find(offset);
                named.class = found.class;
                named.function = found.function.map(|name| cut(&demangled(&name)));
                return named;
            }
            _ => return named,
        };
        let elf = Elf::new(path);
        let found = self
            .symbolizer
            .symbolize_single(&Source::Elf(elf), Input::FileOffset(offset));
        if let Ok(found) = found
            && let Some(symbol) = found.as_sym()
        {
            named.class = class::of_function(flavour, &symbol.name);
            named.function = Some(cut(&symbol.name));
            named.source = symbol.code_info.as_ref().and_then(|info| {
                Some(SourceLine {
                    file: cut(&info.to_path().to_string_lossy()),
                    line: info.line?,
                })
            });
        }
        named
    }

    fn open(&mut self, pid: u32, number: u32, module: &Module) {
        if self.files.contains_key(&number) {
            return;
        }
        let many = self.files.len() >= MAX_FILES || self.tables > MAX_TABLES;
        if many || self.bytes > MAX_BYTES {
            *self = Self::new(self.shared.clone());
        }
        let opened = match open(pid, module) {
            Some((file, bytes)) if bytes > LARGE => {
                self.shared.of_file(file, &module.name).map(|table| {
                    self.tables += table.bytes();
                    Opened::Table(table)
                })
            }
            Some((file, bytes)) => {
                self.bytes += bytes;
                Some(Opened::File(file))
            }
            None => None,
        };
        self.files.insert(number, opened);
    }
}

fn open(pid: u32, module: &Module) -> Option<(File, u64)> {
    let path = module.path.to_str().filter(|path| !path.is_empty())?;
    module.open(&through_root(pid, path))
}

fn cut(name: &str) -> String {
    let mut end = name.len().min(MAX_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name[..end].to_owned()
}
