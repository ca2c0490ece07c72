//! A running program's code, in which probes leave traps.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

/// What a process has mapped of a library's code, or of its own program's.
pub struct Text {
    pid: i32,
    ranges: Vec<(u64, u64)>,
}

impl Text {
    pub fn of(pid: i32, library: &str) -> Self {
        let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("mappings");
        let ranges = maps
            .lines()
            .filter(|line| line.contains(" r-xp ") && line.contains(library))
            .filter_map(|line| {
                let (start, end) = line.split(' ').next()?.split_once('-')?;
                let hex = |text| u64::from_str_radix(text, 16).ok();
                Some((hex(start)?, hex(end)?))
            })
            .collect::<Vec<_>>();
        assert!(!ranges.is_empty(), "{library} is not mapped");
        Self { pid, ranges }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let memory = File::open(format!("/proc/{}/mem", self.pid)).expect("its memory");
        let mut out = Vec::new();
        for (start, end) in &self.ranges {
            let mut part = vec![0; (end - start) as usize];
            memory.read_exact_at(&mut part, *start).expect("code");
            out.extend(part);
        }
        out
    }

    /// Waits until a breakpoint is in it, or gives up.
    pub fn trapped(&self, before: &[u8], patience: Duration) -> bool {
        self.becomes(patience, |now| now != before)
    }

    /// Waits until its bytes are as they should be, or gives up.
    pub fn becomes(&self, patience: Duration, is: impl Fn(&[u8]) -> bool) -> bool {
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if is(&self.bytes()) {
                return true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}
