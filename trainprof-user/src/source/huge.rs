//! Whether a page is part of a huge one, as `PAGEMAP_SCAN` tells: an ioctl of `/proc/PID/pagemap` (include/uapi/linux/fs.h, Linux 6.7).

use std::{
    fs::{self, File},
    os::fd::AsRawFd,
};

/// `PAGE_IS_HUGE`.
const IS_HUGE: u64 = 1 << 6;
/// Where the kernel tells how large a huge page is (Documentation/admin-guide/mm/transhuge.rst).
const SIZE: &str = "/sys/kernel/mm/transparent_hugepage/hpage_pmd_size";

/// `struct page_region`.
#[repr(C)]
#[derive(Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct Scan {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: libc::c_ulong =
    3 << 30 | (size_of::<Scan>() as libc::c_ulong) << 16 | (b'f' as libc::c_ulong) << 8 | 16;

/// Huge pages of this host.
pub struct Huge {
    /// Bytes of one; `None`: there are none, or the kernel does not tell which are.
    bytes: Option<u64>,
}

impl Default for Huge {
    fn default() -> Self {
        let bytes = fs::read_to_string(SIZE);
        Self {
            bytes: bytes.ok().and_then(|bytes| bytes.trim().parse().ok()),
        }
    }
}

impl Huge {
    /// Bytes of the huge page that the page at `start` is part of; `None` if it is an ordinary one, or is not there.
    pub fn at(&mut self, pagemap: &File, start: u64, page_bytes: u64) -> Option<u64> {
        let bytes = self.bytes?;
        let mut region = Region::default();
        let mut scan = Scan {
            size: size_of::<Scan>() as u64,
            start,
            end: start + page_bytes,
            vec: &raw mut region as u64,
            vec_len: 1,
            category_mask: IS_HUGE,
            return_mask: IS_HUGE,
            ..Scan::default()
        };
        // SAFETY: the kernel reads and writes `scan`, and writes one region; both outlive the call.
        let found = unsafe { libc::ioctl(pagemap.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut scan) };
        if found < 0 {
            let error = std::io::Error::last_os_error().raw_os_error();
            if matches!(error, Some(libc::ENOTTY | libc::EINVAL | libc::EPERM)) {
                self.bytes = None;
            }
            return None;
        }
        (found > 0).then_some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::pages::page_bytes;

    #[test]
    fn a_huge_page_of_our_own_is_told_from_an_ordinary_one() {
        let mut huge = Huge::default();
        let Some(bytes) = huge.bytes else {
            eprintln!("this kernel has no huge pages");
            return;
        };
        // SAFETY: a new mapping, with room for one whole huge page.
        let at = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                2 * bytes as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_ANONYMOUS | libc::MAP_PRIVATE,
                -1,
                0,
            )
        };
        assert_ne!(at, libc::MAP_FAILED);
        let whole = (at as u64).next_multiple_of(bytes);
        let map = File::open("/proc/self/pagemap").expect("our own pages");
        assert_eq!(huge.at(&map, whole, page_bytes()), None, "nothing is there");
        let advise = |advice| {
            // SAFETY: inside the mapping.
            unsafe { libc::madvise(whole as *mut _, bytes as usize, advice) }
        };
        let write = || {
            // SAFETY: inside the mapping.
            unsafe { (whole as *mut u8).write_volatile(1) }
        };
        assert_eq!(advise(libc::MADV_NOHUGEPAGE), 0);
        write();
        assert_eq!(huge.at(&map, whole, page_bytes()), None);
        assert_eq!(advise(libc::MADV_DONTNEED), 0);
        assert_eq!(advise(libc::MADV_HUGEPAGE), 0);
        write();
        let rollup = fs::read_to_string("/proc/self/smaps").expect("our own mappings");
        let there: u64 = rollup
            .lines()
            .filter_map(|line| line.strip_prefix("AnonHugePages:"))
            .filter_map(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok())
            .sum();
        let told = huge.at(&map, whole, page_bytes());
        if there == 0 || huge.bytes.is_none() {
            // Huge pages are switched off, or the kernel does not tell.
            assert_eq!(told, None);
        } else {
            assert_eq!(told, Some(bytes));
        }
        // SAFETY: mapped above, and not used any more.
        unsafe { libc::munmap(at, 2 * bytes as usize) };
    }
}
