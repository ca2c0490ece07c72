//! What the machines boot: an initramfs with the tests, what they need, and a first process that runs them.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cmd::{find_program, output, root},
    cpio::Archive,
    outcome::Test,
    test::{Built, name_of},
};

/// What the kernel's command line tells with which list a machine runs.
pub const LIST: &str = "trainprof.list=";

/// What a machine runs.
#[derive(Clone)]
pub enum Task {
    /// The tests of a binary whose name holds a text.
    Whole(String, String),
    /// One test of a binary.
    One(Test),
}

/// The longest that one test binary may run in it, so that the others still get their turn.
const TEST_LIMIT_S: u32 = 900;
/// What runs in the machine as its first process.
const INIT: &str = include_str!("init.sh");
/// File systems and devices that tests mount; those that are built into a kernel are left out.
const MODULES: &[&str] = &[
    "virtio_pci",
    "virtio_blk",
    "loop",
    "crc32c_generic",
    "ext4",
    "fuse",
    "overlay",
];
/// Programs of the host that the tests call and that busybox has only a part of.
const PROGRAMS: &[&str] = &["setpriv", "unshare", "nsenter", "mkfs.ext4"];
/// Allocators that tests preload.
const ALLOCATORS: &[&str] = &[
    "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
    "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4",
];

/// Writes it, with the lists of what machines run.
pub fn pack(
    path: &Path,
    kernel: &Path,
    release: &str,
    built: &Built,
    lists: &[Vec<Task>],
) -> Result<()> {
    let mut archive = Archive::create(path)?;
    for dir in [
        "proc", "sys", "dev", "tmp", "run", "mnt", "root", "etc", "var",
    ] {
        archive.directory(dir)?;
    }
    archive.file(
        "etc/passwd",
        0o644,
        b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/sh\n",
    )?;
    archive.file("etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n")?;
    archive.file("etc/hosts", 0o644, b"127.0.0.1 localhost\n")?;
    let busybox = find_program("busybox").context("busybox is missing")?;
    archive.copy(&busybox, "bin/busybox")?;
    archive.symlink("bin/sh", "busybox")?;
    for (n, tasks) in lists.iter().enumerate() {
        archive.file(&format!("list-{n}"), 0o644, lines(tasks).as_bytes())?;
    }
    let told = format!(
        "export CI='{}'\nlimit={TEST_LIMIT_S}\n",
        std::env::var("CI").unwrap_or_default().replace('\'', "")
    );
    archive.file("told", 0o644, told.as_bytes())?;
    archive.file("init", 0o755, INIT.as_bytes())?;

    with_libraries(&mut archive, &built.trainprof, "bin/trainprof")?;
    for binary in &built.test_binaries {
        with_libraries(&mut archive, binary, &format!("tests/{}", name_of(binary)))?;
    }
    for program in PROGRAMS {
        if let Some(file) = find_program(program) {
            with_libraries(&mut archive, &file, &format!("usr/bin/{program}"))?;
        }
    }
    pack_workloads(&mut archive)?;
    pack_allocators(&mut archive)?;
    pack_python(&mut archive)?;
    let mut order = String::new();
    for module in module_files(kernel, release)? {
        let content = module_content(&module)?;
        let name = module
            .file_name()
            .context("a module has a name")?
            .to_string_lossy();
        let name = name.trim_end_matches(".xz").to_owned();
        archive.file(&format!("modules/{name}"), 0o644, &content)?;
        order.push_str(&format!("{name}\n"));
    }
    archive.file("modules/order", 0o644, order.as_bytes())?;
    archive.finish()?;
    Ok(())
}

/// The lines that the first process reads: a test binary and libtest's arguments.
fn lines(tasks: &[Task]) -> String {
    let line = |task: &Task| match task {
        Task::Whole(binary, filter) => format!("{binary} {filter}\n"),
        Task::One(Test { binary, name }) => format!("{binary} --exact {name}\n"),
    };
    tasks.iter().map(line).collect()
}

/// Puts a program and the libraries that it loads into the archive.
fn with_libraries(
    archive: &mut Archive<impl std::io::Write>,
    program: &Path,
    name: &str,
) -> Result<()> {
    archive.copy(program, name)?;
    for library in libraries(program) {
        let name = library.to_string_lossy().into_owned();
        archive.copy(&library, &name)?;
    }
    Ok(())
}

/// The absolute paths that ldd names; none for a static program.
pub fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = output(
        Command::new("ldd")
            .arg(program)
            .env_remove("LD_LIBRARY_PATH"),
    )
    .unwrap_or_default();
    let path = |line: &str| {
        let after = line.split_once("=> ").map_or(line, |(_, after)| after);
        after
            .split_whitespace()
            .next()
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    listed.lines().filter_map(path).collect()
}

/// The compiled workloads, and the scripts beside them.
fn pack_workloads(archive: &mut Archive<impl std::io::Write>) -> Result<()> {
    archive.directory("workloads")?;
    let built = root().join("target/workloads");
    for folder in ["", "gpu/"] {
        archive.directory(format!("workloads/{folder}").trim_end_matches('/'))?;
        for entry in fs::read_dir(built.join(folder))?
            .flatten()
            .filter(|entry| entry.path().is_file())
        {
            let name = format!("workloads/{folder}{}", entry.file_name().to_string_lossy());
            with_libraries(archive, &entry.path(), &name)?;
        }
    }
    Ok(())
}

/// They are in no list of a program's libraries, and not on every host.
fn pack_allocators(archive: &mut Archive<impl std::io::Write>) -> Result<()> {
    for library in ALLOCATORS.iter().map(Path::new) {
        if library.is_file() {
            with_libraries(archive, library, &library.to_string_lossy())?;
        }
    }
    Ok(())
}

/// The distribution's Python with its standard library, when there is one; packages are on a disk (`packages`).
fn pack_python(archive: &mut Archive<impl std::io::Write>) -> Result<()> {
    let Ok(python) = fs::canonicalize("/usr/bin/python3") else {
        return Ok(());
    };
    let name = python
        .file_name()
        .context("a program has a name")?
        .to_string_lossy()
        .into_owned();
    with_libraries(archive, &python, &format!("usr/bin/{name}"))?;
    archive.symlink("usr/bin/python3", &name)?;
    pack_tree(archive, &Path::new("/usr/lib").join(&name))
}

fn pack_tree(archive: &mut Archive<impl std::io::Write>, dir: &Path) -> Result<()> {
    // Large, and no workload imports them.
    const LEFT_OUT: &[&str] = &[
        "test",
        "idlelib",
        "tkinter",
        "lib2to3",
        "ensurepip",
        "turtledemo",
        "pydoc_data",
        "distutils",
        "dist-packages",
    ];
    for entry in fs::read_dir(dir)
        .with_context(|| format!("cannot read {}", dir.display()))?
        .flatten()
    {
        let path = entry.path();
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if path.is_dir() {
            if !LEFT_OUT.contains(&name.as_ref()) && !name.starts_with("config-") {
                pack_tree(archive, &path)?;
            }
        } else if name.ends_with(".so") {
            with_libraries(archive, &path, &path.to_string_lossy())?;
        } else if path.is_file() {
            archive.copy(&path, &path.to_string_lossy())?;
        }
    }
    Ok(())
}

/// The wanted modules' files in the order of loading.
fn module_files(kernel: &Path, release: &str) -> Result<Vec<PathBuf>> {
    let dir = kernel.join("lib/modules").join(release);
    let listed = fs::read_to_string(dir.join("modules.dep")).context("cannot read modules.dep")?;
    let order = load_order(&listed, MODULES);
    Ok(order.into_iter().map(|file| dir.join(file)).collect())
}

/// The wanted modules and what they depend on, dependencies first, from the text of `modules.dep`.
fn load_order(listed: &str, wanted: &[&str]) -> Vec<String> {
    let mut by_name = HashMap::new();
    let mut depends = HashMap::new();
    for (file, needs) in listed.lines().filter_map(|line| line.split_once(':')) {
        let name = file
            .rsplit('/')
            .next()
            .unwrap_or(file)
            .split('.')
            .next()
            .unwrap_or(file);
        by_name.insert(name.replace('-', "_"), file);
        // depmod lists the closest first, so the farthest has to be loaded first.
        depends.insert(file, needs.split_whitespace().rev().collect::<Vec<_>>());
    }
    let mut order = Vec::new();
    let mut seen = BTreeSet::new();
    for file in wanted.iter().filter_map(|name| by_name.get(*name)) {
        for &file in depends.get(file).into_iter().flatten().chain([file]) {
            if seen.insert(file) {
                order.push(file.to_owned());
            }
        }
    }
    order
}

/// A module as the kernel takes it.
fn module_content(file: &Path) -> Result<Vec<u8>> {
    if file.extension().is_some_and(|extension| extension == "xz") {
        let unpacked = Command::new("xz")
            .args(["-dc"])
            .arg(file)
            .output()
            .context("cannot start xz")?;
        if !unpacked.status.success() {
            bail!("xz cannot read {}", file.display());
        }
        return Ok(unpacked.stdout);
    }
    fs::read(file).with_context(|| format!("cannot read {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::{Task, Test, lines, load_order};

    #[test]
    fn tasks_are_lines_of_a_binary_and_its_arguments() {
        let tasks = [
            Task::Whole("io".into(), "cold".into()),
            Task::Whole("io".into(), String::new()),
            Task::One(Test {
                binary: "io".into(),
                name: "cold_reads".into(),
            }),
        ];
        assert_eq!(lines(&tasks), "io cold\nio \nio --exact cold_reads\n");
    }

    #[test]
    fn modules_come_after_what_they_need() {
        let listed = "kernel/fs/ext4/ext4.ko: kernel/fs/jbd2/jbd2.ko kernel/lib/crc16.ko\n\
                      kernel/fs/jbd2/jbd2.ko:\nkernel/lib/crc16.ko:\nkernel/a/crc32c-generic.ko.xz:\n";
        let order = load_order(listed, &["ext4", "crc32c_generic", "absent", "jbd2"]);
        let expected = [
            "kernel/lib/crc16.ko",
            "kernel/fs/jbd2/jbd2.ko",
            "kernel/fs/ext4/ext4.ko",
            "kernel/a/crc32c-generic.ko.xz",
        ];
        assert_eq!(order, expected);
    }
}
