//! A disk with what Python jobs import beyond the standard library: PyTorch, NumPy and the libraries that they load would be too large
//! for the memory of a machine. Machines share it, and read only.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{initramfs::libraries, machine::mkfs};
use crate::{
    cmd::{output, run},
    setup::DISTRIBUTIONS_PYTHON,
};

/// Tells the folders and files in the distribution's folder of packages that a loader of pictures uses.
const IMPORTED: &str = "
import sys, numpy, torch, torch.utils.data, PIL.Image
found = set()
for module in list(sys.modules.values()):
    before, here, rest = (getattr(module, '__file__', None) or '').partition('/dist-packages/')
    if here:
        found.add(before + here + rest.split('/')[0])
print('\\n'.join(sorted(found)))
";
/// The disk is a sparse file: what nothing is written to takes no room.
const DISK_BYTES: u64 = 4 << 30;

/// Makes the disk where there is none that is younger than the host's last change of packages.
pub fn disk(dir: &Path) -> Result<PathBuf> {
    let image = dir.join("packages.img");
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    if let Some(made) = changed(&image)
        && changed(Path::new("/var/lib/dpkg/status")).is_none_or(|packages| packages < made)
    {
        return Ok(image);
    }
    let imported = output(Command::new(DISTRIBUTIONS_PYTHON).args(["-c", IMPORTED]))?;
    let tree = dir.join("packages");
    if tree.exists() {
        fs::remove_dir_all(&tree)?;
    }
    let mut loaded = BTreeSet::new();
    for path in imported.lines().map(Path::new) {
        copy(path, &tree, &mut loaded)?;
    }
    for library in &loaded {
        copy_file(library, &tree)?;
    }
    fs::File::create(&image)
        .and_then(|file| file.set_len(DISK_BYTES))
        .with_context(|| format!("cannot write {}", image.display()))?;
    let made = run(mkfs(&image).arg("-d").arg(&tree));
    fs::remove_dir_all(&tree)?;
    if made.is_err() {
        fs::remove_file(&image)?;
    }
    made.map(|()| image)
}

/// Copies a folder or a file to its place in the tree, and notes what its libraries load.
fn copy(path: &Path, tree: &Path, loaded: &mut BTreeSet<PathBuf>) -> Result<()> {
    if !path.is_dir() {
        if path.extension().is_some_and(|extension| extension == "so") {
            loaded.extend(libraries(path));
        }
        return copy_file(path, tree);
    }
    let entries = fs::read_dir(path).with_context(|| format!("cannot read {}", path.display()))?;
    for path in entries.flatten().map(|entry| entry.path()) {
        // Links to what only other packages have lead nowhere.
        if path.exists() {
            copy(&path, tree, loaded)?;
        }
    }
    Ok(())
}

/// Copies a file with its time: compiled modules count for sources of one age only.
fn copy_file(path: &Path, tree: &Path) -> Result<()> {
    let copied = || -> std::io::Result<()> {
        let to = tree.join(path.strip_prefix("/").unwrap_or(path));
        to.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::copy(path, &to)?;
        let file = fs::File::options().write(true).open(&to)?;
        file.set_modified(fs::metadata(path)?.modified()?)
    };
    copied().with_context(|| format!("cannot copy {}", path.display()))
}
