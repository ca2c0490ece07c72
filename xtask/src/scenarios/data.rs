//! Data sets: random bytes, so that nothing below can guess or compress them.

use std::{
    fs::{self, File},
    io::{Read as _, Write as _},
    os::fd::AsRawFd as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

use super::{interrupt, random::Random};

/// A folder of files of about that size each (a quarter more or less).
pub fn files(folder: &Path, count: u64, bytes: f64, random: &mut Random) -> Result<()> {
    fs::create_dir_all(folder)?;
    let mut pool = vec![0; 4 << 20];
    random.fill(&mut pool);
    let ending = *random.pick(&["bin", "jpg", "dat", "npy"]);
    for number in 0..count {
        interrupt::check()?;
        let size = random.between(0.75 * bytes, 1.25 * bytes) as usize;
        let from = (random.next() % (pool.len() - size.min(pool.len() - 1)) as u64) as usize;
        let path = folder.join(format!("{number:06}.{ending}"));
        let part = &pool[from..(from + size).min(pool.len())];
        fs::write(&path, part).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

pub fn blob(path: &Path, megabytes: u64, random: &mut Random) -> Result<()> {
    let mut file = File::create(path)?;
    let mut block = vec![0; 1 << 20];
    for _ in 0..megabytes {
        interrupt::check()?;
        random.fill(&mut block);
        file.write_all(&block)?;
    }
    Ok(())
}

fn each(path: &Path, act: &mut dyn FnMut(&mut File) -> Result<()>) -> Result<()> {
    if path.is_file() {
        return act(&mut File::open(path)?);
    }
    for entry in fs::read_dir(path)? {
        interrupt::check()?;
        each(&entry?.path(), act)?;
    }
    Ok(())
}

/// Leaves nothing of the data in the page cache. Only clean pages can be dropped, so they are written before; not by
/// sync, which would wait for whatever else the machine has to write.
pub fn chill(path: &Path) -> Result<()> {
    let begin = libc::SYNC_FILE_RANGE_WRITE;
    let wait = libc::SYNC_FILE_RANGE_WAIT_BEFORE | begin | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    for flags in [begin, wait] {
        each(path, &mut |file| {
            // SAFETY: the descriptor is open; length 0 means to the end.
            if unsafe { libc::sync_file_range(file.as_raw_fd(), 0, 0, flags) } != 0 {
                bail!("sync_file_range: {}", std::io::Error::last_os_error());
            }
            Ok(())
        })?;
    }
    each(path, &mut |file| {
        // SAFETY: as above.
        let error =
            unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        if error != 0 {
            bail!("posix_fadvise: error {error}");
        }
        Ok(())
    })
}

/// Brings all of the data into the page cache.
pub fn warm(path: &Path) -> Result<()> {
    let mut block = vec![0; 1 << 20];
    each(path, &mut |file| {
        while file.read(&mut block)? > 0 {}
        Ok(())
    })
}

/// A folder that is removed in the end.
pub struct Folder(pub PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
