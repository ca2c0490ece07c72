//! Tables of functions that several threads look into: each file's is read once, and forgotten with the last who uses it.

use std::{
    collections::HashMap,
    fs::File,
    os::unix::fs::MetadataExt,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use super::symbols::Index;

/// Device and inode: as long as its table is kept, the file is open, and no other can have these.
type Id = (u64, u64);
/// Locked while the file is read, so that others who want the same wait, and nobody else.
type Slot = Arc<Mutex<Weak<Index>>>;

/// See the module. Clones share what they know.
#[derive(Clone, Default)]
pub struct Shared(Arc<Mutex<HashMap<Id, Slot>>>);

impl Shared {
    /// The table of an open file. `None`: it is no ELF file, or cannot be read.
    pub fn of_file(&self, file: File, name: &str) -> Option<Arc<Index>> {
        let metadata = file.metadata().ok()?;
        let slot = self.slot((metadata.dev(), metadata.ino()));
        let mut known = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = known.upgrade() {
            return Some(index);
        }
        let index = Arc::new(Index::of_file(file, name)?);
        *known = Arc::downgrade(&index);
        Some(index)
    }

    fn slot(&self, id: Id) -> Slot {
        let mut slots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(slot) = slots.get(&id) {
            return slot.clone();
        }
        // A slot that is locked is in use.
        slots.retain(|_, slot| {
            slot.try_lock()
                .map_or(true, |known| known.strong_count() > 0)
        });
        slots.entry(id).or_default().clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> File {
        File::open("/proc/self/exe").expect("this program")
    }

    #[test]
    fn a_file_is_read_once_as_long_as_somebody_uses_it() {
        let tables = Shared::default();
        let first = tables.of_file(own(), "own").expect("a table");
        let again = tables.clone().of_file(own(), "own").expect("a table");
        assert!(Arc::ptr_eq(&first, &again));
        let gone = Arc::downgrade(&first);
        drop((first, again));
        assert_eq!(gone.strong_count(), 0);
        let other = File::open("/bin/true").expect("a small program");
        let _other = tables.of_file(other, "true").expect("a table");
        assert_eq!(tables.0.lock().expect("slots").len(), 1);
        assert!(tables.of_file(own(), "own").is_some());
    }
}
