//! Which functions allocate and free, and what their arguments mean (malloc(3), posix_memalign(3), the C++ ABI's
//! names of `operator new` and `operator delete`, with an alignment and without exceptions too; jemalloc(3), whose `xallocx` makes and
//! frees nothing). The forms of `operator delete`
//! that are called only when a constructor throws are left out.

use trainprof_common::alloc::NO_ARG;

/// One function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// As libraries export it.
    pub name: &'static str,
    /// As people know it.
    pub shown: &'static str,
    /// Which argument is the size in bytes, and which it is multiplied with; [`NO_ARG`]: none.
    pub size: u8,
    pub times: u8,
    /// Which argument points to where the address is stored; [`NO_ARG`]: it is returned.
    pub result: u8,
    /// The first argument is given back.
    pub frees: bool,
    /// It throws where there is no memory. Its return is never probed: the trap's own return address would end the
    /// search for who catches that, and so the job.
    pub throws: bool,
}

impl Row {
    pub const fn allocates(&self) -> bool {
        self.size != NO_ARG
    }

    /// What it makes can be followed to its release.
    pub const fn is_followed(&self) -> bool {
        self.allocates() && !self.throws
    }

    /// One of C++'s operators.
    pub fn is_operator(&self) -> bool {
        self.shown.starts_with("operator ")
    }

    /// One of jemalloc's own interface.
    pub fn is_jemallocs(&self) -> bool {
        self.name.ends_with("allocx")
    }

    /// How many leading arguments must still be intact where the probe is.
    pub fn arguments(&self) -> usize {
        let last = |n: u8| if n == NO_ARG { 0 } else { usize::from(n) + 1 };
        last(self.size)
            .max(last(self.times))
            .max(last(self.result))
            .max(usize::from(self.frees))
    }
}

const fn allocates(name: &'static str, shown: &'static str, size: u8) -> Row {
    Row {
        name,
        shown,
        size,
        times: NO_ARG,
        result: NO_ARG,
        frees: false,
        throws: false,
    }
}

const fn throws(name: &'static str, shown: &'static str) -> Row {
    Row {
        throws: true,
        ..allocates(name, shown, 0)
    }
}

const fn frees(name: &'static str, shown: &'static str) -> Row {
    Row {
        frees: true,
        ..allocates(name, shown, NO_ARG)
    }
}

const NEW: &str = "operator new";
const NEW_ARRAY: &str = "operator new[]";
const DELETE: &str = "operator delete";
const DELETE_ARRAY: &str = "operator delete[]";

/// Every function, the busiest first. Recordings hold indices: rows are added at the end.
pub const CATALOGUE: &[Row] = &[
    allocates("malloc", "malloc", 0),
    frees("free", "free"),
    Row {
        times: 0,
        ..allocates("calloc", "calloc", 1)
    },
    Row {
        frees: true,
        ..allocates("realloc", "realloc", 1)
    },
    Row {
        result: 0,
        ..allocates("posix_memalign", "posix_memalign", 2)
    },
    allocates("aligned_alloc", "aligned_alloc", 1),
    allocates("memalign", "memalign", 1),
    throws("_Znwm", NEW),
    throws("_Znam", NEW_ARRAY),
    allocates("_ZnwmRKSt9nothrow_t", NEW, 0),
    allocates("_ZnamRKSt9nothrow_t", NEW_ARRAY, 0),
    throws("_ZnwmSt11align_val_t", NEW),
    throws("_ZnamSt11align_val_t", NEW_ARRAY),
    frees("_ZdlPv", DELETE),
    frees("_ZdlPvm", DELETE),
    frees("_ZdaPv", DELETE_ARRAY),
    frees("_ZdaPvm", DELETE_ARRAY),
    allocates("valloc", "valloc", 0),
    allocates("pvalloc", "pvalloc", 0),
    allocates("_ZnwmSt11align_val_tRKSt9nothrow_t", NEW, 0),
    allocates("_ZnamSt11align_val_tRKSt9nothrow_t", NEW_ARRAY, 0),
    frees("_ZdlPvSt11align_val_t", DELETE),
    frees("_ZdlPvmSt11align_val_t", DELETE),
    frees("_ZdaPvSt11align_val_t", DELETE_ARRAY),
    frees("_ZdaPvmSt11align_val_t", DELETE_ARRAY),
    allocates("mallocx", "mallocx", 0),
    Row {
        frees: true,
        ..allocates("rallocx", "rallocx", 1)
    },
    frees("dallocx", "dallocx"),
    frees("sdallocx", "sdallocx"),
];

/// The functions that a module must define to be taken for an allocator.
pub const ESSENTIAL: &str = "malloc";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_that_are_needed() {
        let of = |name: &str| {
            CATALOGUE
                .iter()
                .find(|row| row.name == name)
                .expect("a row")
                .arguments()
        };
        assert_eq!(of("malloc"), 1);
        assert_eq!(of("calloc"), 2);
        assert_eq!(of("realloc"), 2);
        assert_eq!(of("posix_memalign"), 3);
        assert_eq!(of("free"), 1);
    }

    #[test]
    fn what_may_throw_is_told_by_its_name() {
        for row in CATALOGUE.iter().filter(|row| row.name.starts_with("_Zn")) {
            assert_eq!(row.throws, !row.name.contains("nothrow"), "{}", row.name);
        }
        let throws = |row: &&Row| row.throws && !row.name.starts_with("_Zn");
        assert_eq!(CATALOGUE.iter().find(throws), None);
    }

    #[test]
    fn each_function_is_there_once() {
        let names: std::collections::BTreeSet<_> = CATALOGUE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), CATALOGUE.len());
        assert!(CATALOGUE.len() < 256);
    }
}
