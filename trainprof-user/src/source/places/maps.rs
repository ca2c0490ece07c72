//! The executable mappings of a process (`/proc/PID/maps`, proc_pid_maps(5)). Pure.

/// One executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    pub start: u64,
    pub end: u64,
    /// Offset in the file that `start` shows.
    pub offset: u64,
    /// Device as (major, minor).
    pub device: (u32, u32),
    pub inode: u64,
    /// Path, a name in brackets, or empty.
    pub path: &'a str,
    /// The file has no name any more.
    pub deleted: bool,
}

/// Executable mappings, in the order of their addresses. Lines that are none are left out.
pub fn decode(text: &str) -> impl Iterator<Item = Line<'_>> {
    text.lines().filter_map(line)
}

fn line(text: &str) -> Option<Line<'_>> {
    let mut rest = text;
    let mut field = || {
        let (word, after) = rest
            .trim_start()
            .split_once(' ')
            .unwrap_or((rest.trim(), ""));
        rest = after;
        word
    };
    let (start, end) = field().split_once('-')?;
    let permissions = field();
    if permissions.as_bytes().get(2) != Some(&b'x') {
        return None;
    }
    let offset = u64::from_str_radix(field(), 16).ok()?;
    let (major, minor) = field().split_once(':')?;
    let device = (
        u32::from_str_radix(major, 16).ok()?,
        u32::from_str_radix(minor, 16).ok()?,
    );
    let inode = field().parse().ok()?;
    let path = rest.trim_start();
    let plain = path.strip_suffix(" (deleted)");
    Some(Line {
        start: u64::from_str_radix(start, 16).ok()?,
        end: u64::from_str_radix(end, 16).ok()?,
        offset,
        device,
        inode,
        path: plain.unwrap_or(path),
        deleted: plain.is_some(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn executable_mappings_are_found() {
        let text = "\
55d0a0000000-55d0a0001000 r--p 00000000 fe:00 131 /usr/bin/my prog
55d0a0001000-55d0a0005000 r-xp 00001000 fe:00 131                        /usr/bin/my prog
7f0000000000-7f0000001000 rwxp 00000000 00:00 0
7f0000002000-7f0000003000 r-xp 00026000 103:02 77 /lib/libc.so.6 (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                          [vdso]
nonsense
";
        let lines: Vec<_> = decode(text).collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert_eq!(
            lines[0],
            Line {
                start: 0x55d0_a000_1000,
                end: 0x55d0_a000_5000,
                offset: 0x1000,
                device: (0xfe, 0),
                inode: 131,
                path: "/usr/bin/my prog",
                deleted: false,
            }
        );
        assert_eq!((lines[1].path, lines[1].inode), ("", 0));
        assert_eq!((lines[2].path, lines[2].deleted), ("/lib/libc.so.6", true));
        assert_eq!(lines[2].device, (0x103, 2));
        assert_eq!(lines[3].path, "[vdso]");
    }

    proptest! {
        #[test]
        fn any_text_gives_lines_or_none(text in "[0-9a-f rxp:\\-\\[\\]\n/é]{0,200}") {
            let _ = decode(&text).count();
        }
    }
}
