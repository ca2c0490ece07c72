//! Which of the watched libraries a process has mapped, by its table of mappings (`proc_pid_maps(5)`).

use super::catalogue::Library;

/// A mapped library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    pub library: Library,
    /// As the process sees it.
    pub path: String,
    /// Device and inode, as the table names them.
    pub identity: String,
    /// Address of its first mapping.
    pub start: u64,
}

/// The libraries of a table, each once.
pub fn decode(maps: &str) -> Vec<Mapped> {
    let mut out = Vec::<Mapped>::new();
    // Few lines pass this first test, and a table may have thousands.
    for line in maps.lines().filter(|line| Library::may_be_in(line)) {
        let Some(mapped) = decode_line(line) else {
            continue;
        };
        if !out.iter().any(|m| m.identity == mapped.identity) {
            out.push(mapped);
        }
    }
    out
}

fn decode_line(line: &str) -> Option<Mapped> {
    let path = line.get(line.find('/')?..)?;
    let library = Library::of(path.rsplit('/').next()?)?;
    let mut fields = line.split_ascii_whitespace();
    let start = fields.next()?.split('-').next()?;
    let (_access, _offset, device, inode) = (
        fields.next()?,
        fields.next()?,
        fields.next()?,
        fields.next()?,
    );
    Some(Mapped {
        library,
        path: path.to_owned(),
        identity: format!("{device} {inode}"),
        start: u64::from_str_radix(start, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_library_is_found_once() {
        let maps = "\
55d0c0-55d0c1 r--p 00000000 fe:01 10 /usr/bin/python3.11
7f0000-7f0100 r--p 00000000 fe:01 77 /opt/my env/libcudart.so.12
7f0100-7f0200 r-xp 00100000 fe:01 77 /opt/my env/libcudart.so.12
7f1000-7f2000 r-xp 00000000 fe:01 78 /usr/lib/libcuda.so.550.54.15
7f3000-7f4000 r-xp 00000000 fe:01 79 /usr/lib/libcudadebugger.so.1
7f5000-7f6000 r--p 00000000 fe:01 80 /usr/lib/libtorch_cpu.so.1.13
7f6000-7f7000 r--p 00000000 fe:01 81 /usr/lib/libtorch_cuda.so.1.13
nonsense /libcuda.so.1
";
        let found = decode(maps);
        assert_eq!(found.len(), 3);
        assert_eq!(found[0].path, "/opt/my env/libcudart.so.12");
        assert_eq!(found[0].start, 0x7f0000);
        assert_eq!(found[0].identity, "fe:01 77");
        assert_eq!(found[1].library, Library::Driver);
        assert_eq!(found[2].library, Library::Framework);
        assert!(decode("").is_empty());
    }
}
