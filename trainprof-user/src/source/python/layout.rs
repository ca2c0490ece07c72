//! Where CPython keeps what a stack is read from, by version. Pure.
//!
//! Offsets in bytes, the same on x86-64 and aarch64. Up to 3.12 they are known by version (Include/internal/pycore_runtime.h,
//! pycore_interp.h and pycore_frame.h, Include/cpython/pystate.h, frameobject.h and code.h of each); from 3.13 on the interpreter
//! tells them itself (`_Py_DebugOffsets`), but which of its words means what is known by version again.

use std::fmt;

/// Words of the interpreter's own table that are read.
pub const TOLD_WORDS: usize = 81;
/// The table's first word: `xdebugpy`.
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// No structure is larger.
const MAX_OFFSET: u64 = 1 << 20;
/// Offset of `co_flags` since 3.11.
const FLAGS: u64 = 48;
/// Bytes by which the header of a text that is not ASCII is longer.
const WIDER: u64 = 16;

/// A version of CPython.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
}

impl Version {
    /// Of `PY_VERSION_HEX` (Include/patchlevel.h).
    pub fn of_hex(hex: u64) -> Self {
        Self {
            major: (hex >> 24) as u32 & 0xff,
            minor: (hex >> 16) as u32 & 0xff,
        }
    }

    /// Of text such as `3.10`.
    pub fn of_text(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(str::parse);
        Some(Self {
            major: numbers.next()?.ok()?,
            minor: numbers.next()?.ok()?,
        })
    }

    /// Whether the interpreter tells its layout itself.
    pub fn tells(self) -> bool {
        self >= Self {
            major: 3,
            minor: 13,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Why there is no layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoLayout {
    #[error("the stacks of Python {0} cannot be read by this version")]
    Version(Version),
    #[error("the stacks of Python {0} without its global lock cannot be read")]
    FreeThreaded(Version),
    #[error("Python {0} does not tell its layout as it should")]
    Table(Version),
}

/// Offsets in the interpreter's structures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Of the runtime: its interpreter.
    pub interpreter: u64,
    /// Of an interpreter: its first thread.
    pub threads: u64,
    /// Of a thread: the next one, and its innermost frame.
    pub next_thread: u64,
    pub frame: u64,
    /// Of a thread: what the kernel calls it, in the namespace that it lives in. From 3.11 on.
    pub native: Option<u64>,
    /// Of what the thread points to, where that is not the frame itself: the frame.
    pub frame_behind: Option<u64>,
    /// Of a frame: its caller, its code, and where in the code it is.
    pub caller: u64,
    pub code: u64,
    pub position: u64,
    /// Of code.
    pub flags: u64,
    pub line: u64,
    pub file: u64,
    pub name: u64,
    /// Of a text: its characters, if it is ASCII and if it is not.
    pub ascii: u64,
    pub wide: u64,
}

impl Layout {
    /// Of a version that does not tell it.
    pub fn known(version: Version) -> Result<Self, NoLayout> {
        let old = Self {
            interpreter: 32,
            threads: 8,
            next_thread: 8,
            frame: 24,
            native: None,
            frame_behind: None,
            caller: 24,
            code: 32,
            position: 104,
            flags: 36,
            line: 40,
            file: 104,
            name: 112,
            ascii: 48,
            wide: 48 + 24,
        };
        match (version.major, version.minor) {
            (3, 8..=9) => Ok(old),
            (3, 10) => Ok(Self {
                position: 96,
                ..old
            }),
            (3, 11) => Ok(Self {
                interpreter: 40,
                threads: 16,
                frame: 56,
                native: Some(160),
                frame_behind: Some(8),
                caller: 48,
                position: 56,
                flags: FLAGS,
                line: 72,
                file: 112,
                name: 128,
                ..old
            }),
            (3, 12) => Ok(Self {
                interpreter: 40,
                threads: 72,
                frame: 56,
                native: Some(144),
                frame_behind: Some(0),
                caller: 8,
                code: 0,
                position: 56,
                flags: FLAGS,
                line: 68,
                file: 112,
                name: 128,
                ascii: 40,
                wide: 40 + WIDER,
                ..old
            }),
            _ => Err(NoLayout::Version(version)),
        }
    }

    /// Of a version that tells it, by the words of its table.
    pub fn told(version: Version, words: &[u64; TOLD_WORDS]) -> Result<Self, NoLayout> {
        // After the headers of each structure's members: pycore_runtime.h of 3.13, pycore_debug_offsets.h of 3.14.
        let [
            next,
            frame,
            native,
            caller,
            code,
            position,
            file,
            name,
            line,
            ascii,
        ] = match (version.major, version.minor) {
            (3, 13) => [21, 23, 25, 29, 30, 31, 35, 37, 39, 70],
            (3, 14) => [24, 26, 28, 32, 33, 34, 40, 42, 44, 80],
            _ => return Err(NoLayout::Version(version)),
        };
        if words[0] != COOKIE || Version::of_hex(words[1]) != version {
            return Err(NoLayout::Table(version));
        }
        if words[2] != 0 {
            return Err(NoLayout::FreeThreaded(version));
        }
        let used = [
            5, 9, next, frame, native, caller, code, position, file, name, line, ascii,
        ];
        if used.iter().any(|index| words[*index] > MAX_OFFSET) {
            return Err(NoLayout::Table(version));
        }
        Ok(Self {
            interpreter: words[5],
            threads: words[9],
            next_thread: words[next],
            frame: words[frame],
            native: Some(words[native]),
            frame_behind: None,
            caller: words[caller],
            code: words[code],
            position: words[position],
            flags: FLAGS,
            line: words[line],
            file: words[file],
            name: words[name],
            ascii: words[ascii],
            wide: words[ascii] + WIDER,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn version(major: u32, minor: u32) -> Version {
        Version { major, minor }
    }

    #[test]
    fn versions_are_told_by_number_and_by_text() {
        assert_eq!(Version::of_hex(0x030b_02f0), version(3, 11));
        assert_eq!(Version::of_text("3.10"), Some(version(3, 10)));
        assert_eq!(Version::of_text("3"), None);
        assert!(version(3, 13).tells() && !version(3, 12).tells());
        assert_eq!(version(3, 9).to_string(), "3.9");
    }

    #[test]
    fn only_versions_that_are_known_have_a_layout() {
        for minor in 8..=12 {
            assert!(Layout::known(version(3, minor)).is_ok(), "3.{minor}");
        }
        for other in [version(2, 7), version(3, 7), version(3, 13)] {
            assert_eq!(Layout::known(other), Err(NoLayout::Version(other)));
        }
    }

    #[test]
    fn a_table_that_is_told_is_checked() {
        let newest = version(3, 14);
        let mut words = [0; TOLD_WORDS];
        words[0] = COOKIE;
        words[1] = 0x030e_00f0;
        words[26] = 72;
        words[80] = 40;
        let layout = Layout::told(newest, &words).expect("a layout");
        assert_eq!((layout.frame, layout.ascii, layout.wide), (72, 40, 56));
        let wrong = |index: usize, word: u64| {
            let mut words = words;
            words[index] = word;
            Layout::told(newest, &words)
        };
        assert_eq!(wrong(0, 1), Err(NoLayout::Table(newest)));
        assert_eq!(wrong(1, 0x030d_00f0), Err(NoLayout::Table(newest)));
        assert_eq!(wrong(2, 1), Err(NoLayout::FreeThreaded(newest)));
        assert_eq!(wrong(24, 1 << 40), Err(NoLayout::Table(newest)));
        let next = version(3, 15);
        assert_eq!(Layout::told(next, &words), Err(NoLayout::Version(next)));
    }
}
