//! The tools that benchmarks compare with.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::{apt_get, for_demo, install, missing, numbers, python};
use crate::cmd::{is_root, output, root, run, succeeds};

const MEMRAY: &str = "memray==1.19.1";
const PROGRAMS: &[(&str, &str)] = &[
    ("cc", "gcc"),
    ("strace", "strace"),
    ("bpftrace", "bpftrace"),
    ("heaptrack", "heaptrack"),
    ("memleak-bpfcc", "bpfcc-tools"),
];

/// What `cargo xtask bench` compares with, and a Python with PyTorch.
pub fn for_bench() -> Result<()> {
    for_demo()?;
    install(&missing(PROGRAMS))?;
    if memray().is_none() {
        let python = python().context("no Python with PyTorch")?;
        let pip = |args: &[&str]| {
            let mut command = Command::new(&python);
            command.args(["-m", "pip"]).args(args);
            command
        };
        if !succeeds(&mut pip(&["--version"])) {
            install(&["python3-pip"])?;
        }
        let folder = memray_folder();
        run(pip(&["install", "--quiet", "--target"])
            .arg(&folder)
            .arg(MEMRAY))?;
    }
    if kernel_headers().is_none() {
        fetch_headers().context("cannot get kernel headers, which memleak-bpfcc compiles with")?;
    }
    Ok(())
}

fn memray_folder() -> PathBuf {
    root().join("target/bench/memray")
}

/// The folder of Python modules with memray.
pub fn memray() -> Option<PathBuf> {
    let folder = memray_folder();
    folder
        .join("memray/__init__.py")
        .is_file()
        .then_some(folder)
}

fn headers_folder() -> PathBuf {
    root().join("target/bench/kernel-headers")
}

/// Kernel headers for bcc: the running kernel's own, or those that were unpacked for it. A program on user space's functions
/// uses of them only what is the same in all kernels.
pub fn kernel_headers() -> Option<PathBuf> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let own = Path::new("/lib/modules").join(release.trim()).join("build");
    [own, headers_folder()]
        .into_iter()
        .find(|folder| folder.join("include/linux/kconfig.h").exists())
}

/// Unpacks Debian's newest headers of a cloud kernel, which come in two packages, into one folder; nothing is installed.
fn fetch_headers() -> Result<()> {
    let names = output(Command::new("apt-cache").args(["pkgnames", "linux-headers-"]))?;
    let newest = newest_headers(&names);
    let arch = match newest {
        Some(name) => name.to_owned(),
        None => {
            run(apt_get()?.args(["update", "-qq"]))?;
            let names = output(Command::new("apt-cache").args(["pkgnames", "linux-headers-"]))?;
            newest_headers(&names)
                .context("no package linux-headers-…-cloud-amd64")?
                .to_owned()
        }
    };
    let common = arch.replace("-cloud-amd64", "-common");
    println!("fetching {common} and {arch}");
    let folder = headers_folder();
    let partial = folder.with_extension("new");
    let unpacked = folder.with_extension("unpacked");
    for folder in [&partial, &unpacked, &folder] {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
    }
    fs::create_dir_all(&partial)?;
    fs::create_dir_all(&unpacked)?;
    let mut download = Command::new("apt-get");
    download.current_dir(&unpacked).args(["download", "-qq"]);
    if is_root() {
        // apt's own user may not be allowed to write here.
        download.args(["-o", "APT::Sandbox::User=root"]);
    }
    run(download.args([&common, &arch]))?;
    for entry in fs::read_dir(&unpacked)? {
        let archive = entry?.path();
        if archive.extension().is_some_and(|e| e == "deb") {
            run(Command::new("dpkg-deb")
                .arg("-x")
                .arg(&archive)
                .arg(&unpacked))?;
        }
    }
    // Both have the layout of one source tree.
    for package in [&common, &arch] {
        let tree = unpacked.join("usr/src").join(package).join(".");
        run(Command::new("cp").args(["-rf"]).arg(tree).arg(&partial))?;
    }
    fs::remove_dir_all(&unpacked)?;
    fs::rename(&partial, &folder)?;
    Ok(())
}

/// The newest package of a cloud kernel's headers; those without a version in their name only stand for one.
fn newest_headers(names: &str) -> Option<&str> {
    let versioned = |name: &str| {
        name.strip_prefix("linux-headers-")
            .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    names
        .lines()
        .filter(|name| name.ends_with("-cloud-amd64") && versioned(name))
        .max_by_key(|name| numbers(name))
}

#[cfg(test)]
mod tests {
    use super::newest_headers;

    #[test]
    fn the_newest_headers_are_taken_by_number() {
        let names = "linux-headers-6.1.0-9-cloud-amd64\nlinux-headers-6.12.98+deb12-cloud-amd64\n\
            linux-headers-6.12.111+deb12-cloud-amd64\nlinux-headers-cloud-amd64\nlinux-headers-6.13.1-common\n";
        assert_eq!(
            newest_headers(names),
            Some("linux-headers-6.12.111+deb12-cloud-amd64")
        );
        assert_eq!(
            newest_headers("linux-headers-6.1.0-9-common\nlinux-headers-cloud-amd64\n"),
            None
        );
    }
}
