//! What code is for, as far as the names of its module and function tell. Pure.

use crate::record::fact::PlaceClass;

/// Functions of the C library's allocator that libraries export, in any C library.
pub const MALLOC_EXPORTS: [&str; 24] = [
    "__default_morecore",
    "malloc",
    "free",
    "cfree",
    "calloc",
    "realloc",
    "memalign",
    "aligned_alloc",
    "posix_memalign",
    "valloc",
    "pvalloc",
    "malloc_trim",
    "malloc_usable_size",
    "malloc_stats",
    "malloc_info",
    "mallinfo",
    "mallinfo2",
    "mallopt",
    "__libc_malloc",
    "__libc_free",
    "__libc_calloc",
    "__libc_realloc",
    "__libc_memalign",
    "__libc_mallopt",
];

/// The same allocators' internals (glibc malloc/malloc.c and arena.c, all versions since 2.17).
const MALLOC_INTERNALS: [&str; 36] = [
    "_int_malloc",
    "_int_free",
    "_int_free_chunk",
    "_int_free_merge_chunk",
    "_int_free_create_chunk",
    "_int_free_maybe_consolidate",
    "_int_realloc",
    "_int_memalign",
    "_mid_memalign",
    "__libc_valloc",
    "__libc_pvalloc",
    "__libc_mallinfo",
    "__libc_mallinfo2",
    "__glibc_morecore",
    "__malloc_arena_thread_freeres",
    "malloc_consolidate",
    "malloc_printerr",
    "unlink_chunk",
    "sysmalloc",
    "sysmalloc_mmap",
    "sysmalloc_mmap_fallback",
    "systrim",
    "sysmadvise_thp",
    "ptmalloc_init",
    "munmap_chunk",
    "mremap_chunk",
    "alloc_perturb",
    "free_perturb",
    "arena_get2",
    "arena_get_retry",
    "reused_arena",
    "detach_arena",
    "new_heap",
    "alloc_new_heap",
    "grow_heap",
    "heap_trim",
];

/// Static functions of CPython's obmalloc.c (3.8 to 3.14).
const PYMALLOC_INTERNALS: [&str; 10] = [
    "pymalloc_alloc",
    "pymalloc_free",
    "pymalloc_realloc",
    "allocate_from_new_pool",
    "insert_to_usedpool",
    "insert_to_freepool",
    "new_arena",
    "arena_map_get",
    "arena_map_mark_used",
    "address_in_range",
];

/// What kind of module a place lies in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flavour {
    #[default]
    Plain,
    /// An allocator and nothing else: jemalloc, tcmalloc or mimalloc as a library.
    Allocator,
    /// The Python interpreter.
    Python,
    /// The CUDA runtime or driver.
    GpuDriver,
}

/// A function that only a certain module defines, and what that makes of the module.
const MARKERS: [(&str, Flavour); 5] = [
    ("mallctl", Flavour::Allocator),
    ("tc_malloc", Flavour::Allocator),
    ("mi_malloc", Flavour::Allocator),
    ("Py_BytesMain", Flavour::Python),
    ("_PyEval_EvalFrameDefault", Flavour::Python),
];

impl Flavour {
    /// By the file's name alone, where the file cannot be read.
    pub fn of_name(file: &str) -> Self {
        let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| file.starts_with(prefix));
        if starts(&["libcuda.so", "libcudart.so", "libcudart-"]) {
            Self::GpuDriver
        } else if starts(&["libjemalloc", "libtcmalloc", "libmimalloc"]) {
            Self::Allocator
        } else if starts(&["libpython2", "libpython3"]) || interpreter(file) {
            Self::Python
        } else {
            Self::Plain
        }
    }

    /// By what the file exports. A program that has an allocator linked into it is still a program: only where the
    /// file's name says so too is the whole of it an allocator.
    pub fn of_exports(file: &str, exports: impl Fn(&str) -> bool) -> Self {
        let marked = MARKERS.iter().find(|(name, _)| exports(name));
        match (Self::of_name(file), marked) {
            (Self::Plain, Some((_, Self::Python))) => Self::Python,
            (Self::Plain, Some((_, Self::Allocator))) if file.contains("malloc") => Self::Allocator,
            (by_name, _) => by_name,
        }
    }
}

/// `python3`, `python3.11`, `python3.13t`, and not `python3-config`.
fn interpreter(file: &str) -> bool {
    file.strip_prefix("python").is_some_and(|version| {
        version
            .trim_end_matches(['t', 'd'])
            .chars()
            .all(|c| c.is_ascii_digit() || c == '.')
    })
}

/// Judges a function.
pub fn of_function(flavour: Flavour, name: &str) -> PlaceClass {
    // Compilers make parts and copies of functions: `systrim.constprop.0`, `_int_free.cold`.
    let base = match name.split_once(['.', '@']) {
        Some((base, _)) if !base.is_empty() => base,
        _ => name,
    };
    let starts = |prefixes: &[&str]| prefixes.iter().any(|prefix| base.starts_with(prefix));
    if gpu_allocator(name) {
        PlaceClass::GpuAllocator
    } else if PYMALLOC_INTERNALS.contains(&base) || python_allocator(base) {
        PlaceClass::PyMalloc
    } else if MALLOC_EXPORTS.contains(&base)
        || MALLOC_INTERNALS.contains(&base)
        || starts(&["tcache_", "__malloc_", "__GI___libc_malloc", "__GI___libc_free"])
        // operator new, new[], delete, delete[] (Itanium C++ ABI).
        || starts(&["_Znw", "_Zna", "_Zdl", "_Zda"])
        || starts(&["je_", "_rjem_", "tc_", "_ZN8tcmalloc", "mi_", "_mi_"])
            && (flavour != Flavour::Plain || starts(&["je_", "_rjem_", "_mi_", "mi_", "_ZN8tcmalloc"]))
    {
        PlaceClass::Malloc
    } else {
        of_module(flavour)
    }
}

/// Judges a place of which only the module is known.
pub fn of_module(flavour: Flavour) -> PlaceClass {
    match flavour {
        Flavour::Plain => PlaceClass::Other,
        Flavour::Allocator => PlaceClass::Malloc,
        Flavour::Python => PlaceClass::Python,
        Flavour::GpuDriver => PlaceClass::GpuDriver,
    }
}

/// `PyObject_Malloc`, `_PyObject_Free`, `PyMem_RawCalloc` and so on, and not `PyMemoryView_…`.
fn python_allocator(name: &str) -> bool {
    let name = name.strip_prefix('_').unwrap_or(name);
    name.strip_prefix("PyMem_").is_some()
        || name.strip_prefix("PyObject_").is_some_and(|rest| {
            ["Malloc", "Calloc", "Realloc", "Free", "Arena"]
                .iter()
                .any(|verb| rest.starts_with(verb))
        })
}

/// PyTorch's caching allocators of device and pinned memory, and TensorFlow's and JAX's allocator.
fn gpu_allocator(name: &str) -> bool {
    [
        "CUDACachingAllocator",
        "HIPCachingAllocator",
        "CachingHostAllocator",
        "BFCAllocator",
    ]
    .iter()
    .any(|part| name.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;
    use PlaceClass::{GpuAllocator, GpuDriver, Malloc, Other, PyMalloc, Python};

    #[test]
    fn functions_have_their_class() {
        for (flavour, name, class) in [
            (Flavour::Plain, "malloc", Malloc),
            (Flavour::Plain, "_int_free.cold", Malloc),
            (Flavour::Plain, "systrim.constprop.0", Malloc),
            (Flavour::Plain, "tcache_init.part.0", Malloc),
            (Flavour::Plain, "_Znwm", Malloc),
            (Flavour::Plain, "je_arena_dalloc", Malloc),
            (Flavour::Plain, "memset", Other),
            (Flavour::Plain, "__memmove_avx_unaligned_erms", Other),
            (Flavour::Plain, "malloc_my_things", Other),
            (Flavour::Plain, "free_list", Other),
            (Flavour::Plain, "regfree", Other),
            (Flavour::Plain, "tc_handler", Other),
            (Flavour::Allocator, "arena_bin_choose", Malloc),
            (Flavour::Python, "PyObject_Malloc", PyMalloc),
            (Flavour::Python, "_PyObject_Free", PyMalloc),
            (Flavour::Python, "PyMem_RawFree", PyMalloc),
            (Flavour::Python, "allocate_from_new_pool", PyMalloc),
            (Flavour::Python, "PyMemoryView_FromObject", Python),
            (Flavour::Python, "PyObject_GetAttr", Python),
            (Flavour::Python, "_PyEval_EvalFrameDefault", Python),
            (
                Flavour::Plain,
                "_ZN3c104cuda20CUDACachingAllocator6Native",
                GpuAllocator,
            ),
            (Flavour::GpuDriver, "cudaLaunchKernel", GpuDriver),
        ] {
            assert_eq!(of_function(flavour, name), class, "{name}");
        }
    }

    #[test]
    fn modules_are_known_by_what_they_define() {
        let none = |_: &str| false;
        for (file, flavour) in [
            ("libcuda.so.550.54", Flavour::GpuDriver),
            ("libcudart-a1b2c3.so.12", Flavour::GpuDriver),
            ("libcudnn.so.9", Flavour::Plain),
            ("python3.11", Flavour::Python),
            ("python3.13t", Flavour::Python),
            ("python-config", Flavour::Plain),
            ("libpython3.12.so.1.0", Flavour::Python),
            ("libjemalloc.so.2", Flavour::Allocator),
            ("libtorch_python.so", Flavour::Plain),
        ] {
            assert_eq!(Flavour::of_exports(file, none), flavour, "{file}");
        }
        let only = |wanted: &'static str| move |name: &str| name == wanted;
        assert_eq!(
            Flavour::of_exports("trainer", only("Py_BytesMain")),
            Flavour::Python
        );
        assert_eq!(
            Flavour::of_exports("libxmalloc.so", only("mallctl")),
            Flavour::Allocator
        );
        assert_eq!(
            Flavour::of_exports("trainer", only("mallctl")),
            Flavour::Plain
        );
    }
}
