//! Writes the archive that a Linux kernel unpacks as its first file system (`newc`, see
//! Documentation/driver-api/early-userspace/buffer-format.rst).

use std::{
    collections::HashSet,
    fs::{self, File},
    io::{BufWriter, Write},
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path},
};

use anyhow::{Context as _, Result};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const SYMLINK: u32 = 0o120_000;

pub struct Archive<W: Write> {
    out: W,
    written: u64,
    inode: u32,
    /// Names already in the archive: each is written once.
    names: HashSet<String>,
}

impl Archive<BufWriter<File>> {
    pub fn create(path: &Path) -> Result<Self> {
        let file =
            File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Self::new(BufWriter::new(file)))
    }
}

impl<W: Write> Archive<W> {
    pub fn new(out: W) -> Self {
        Self {
            out,
            written: 0,
            inode: 0,
            names: HashSet::new(),
        }
    }

    /// A folder and those it lies in.
    pub fn directory(&mut self, name: &str) -> Result<()> {
        let mut so_far = String::new();
        for part in Path::new(name).components() {
            let Component::Normal(part) = part else {
                continue;
            };
            if !so_far.is_empty() {
                so_far.push('/');
            }
            so_far.push_str(&part.to_string_lossy());
            self.entry(&so_far.clone(), DIRECTORY | 0o755, b"")?;
        }
        Ok(())
    }

    pub fn file(&mut self, name: &str, permissions: u32, content: &[u8]) -> Result<()> {
        self.parents(name)?;
        self.entry(name.trim_start_matches('/'), REGULAR | permissions, content)
    }

    pub fn symlink(&mut self, name: &str, to: &str) -> Result<()> {
        self.parents(name)?;
        self.entry(name.trim_start_matches('/'), SYMLINK | 0o777, to.as_bytes())
    }

    /// A file of this host, or what a link leads to.
    pub fn copy(&mut self, from: &Path, name: &str) -> Result<()> {
        if self.names.contains(name.trim_start_matches('/')) {
            return Ok(());
        }
        let content = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
        let permissions = fs::metadata(from)?.permissions().mode() & 0o777;
        self.file(name, permissions, &content)
    }

    pub fn finish(mut self) -> Result<W> {
        self.entry("TRAILER!!!", 0, b"")?;
        self.out.flush()?;
        Ok(self.out)
    }

    fn parents(&mut self, name: &str) -> Result<()> {
        match Path::new(name).parent() {
            Some(parent) => self.directory(&parent.to_string_lossy()),
            None => Ok(()),
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) -> Result<()> {
        if !self.names.insert(name.to_owned()) {
            return Ok(());
        }
        self.inode += 1;
        let size = u32::try_from(content.len()).context("a file is too large for the archive")?;
        let name_size = u32::try_from(name.len() + 1)?;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        // inode, mode, uid, gid, links, time, size, device and represented device (major, minor), name, check sum
        let fields = [
            self.inode, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0,
        ];
        self.bytes(b"070701")?;
        for field in fields {
            self.bytes(format!("{field:08x}").as_bytes())?;
        }
        self.bytes(name.as_bytes())?;
        self.bytes(b"\0")?;
        self.pad()?;
        self.bytes(content)?;
        self.pad()
    }

    fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.out
            .write_all(bytes)
            .context("cannot write the archive")?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    /// Names and contents end on a multiple of four.
    fn pad(&mut self) -> Result<()> {
        let padding = self.written.next_multiple_of(4) - self.written;
        self.bytes(&[0; 4][..usize::try_from(padding)?])
    }
}

#[cfg(test)]
mod tests {
    use super::Archive;

    #[test]
    fn the_layout_is_newc() {
        let mut archive = Archive::new(Vec::new());
        archive.file("/a/b", 0o644, b"hello").unwrap();
        let bytes = archive.finish().unwrap();
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("07070100000001000041ed"), "{text}");
        let file = text.find("a/b\0").unwrap();
        let header = &text[file - 110..file];
        assert_eq!(&header[..6], "070701");
        assert_eq!(&header[6 + 8..6 + 16], "000081a4");
        assert_eq!(&header[6 + 6 * 8..6 + 7 * 8], "00000005");
        let content = (file + 4usize).next_multiple_of(4);
        assert_eq!(&text[content..content + 5], "hello");
        assert!(text.contains("TRAILER!!!\0"));
        assert_eq!(text.len() % 4, 0);
    }

    #[test]
    fn a_name_is_written_once() {
        let mut archive = Archive::new(Vec::new());
        archive.directory("usr/bin").unwrap();
        archive.directory("/usr/lib").unwrap();
        archive.file("usr/lib/x", 0o755, b"").unwrap();
        let text = String::from_utf8(archive.finish().unwrap()).unwrap();
        assert_eq!(text.matches("usr\0").count(), 1);
        assert_eq!(text.matches("usr/lib\0").count(), 1);
    }
}
