//! Control groups for tests, of whichever version the host has for a controller.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A group of one controller, with nobody in it; removed at the end, when its processes are gone.
pub struct Group {
    pub dir: PathBuf,
    /// As `/proc/PID/cgroup` names it.
    pub path: String,
    pub version_2: bool,
}

impl Group {
    /// Makes a group below the root of the hierarchy that has `controller` (`cpu`, `memory`, `io`); mounts
    /// version 2 where nothing is mounted.
    pub fn new(controller: &str, name: &str) -> Self {
        let name = format!("trainprof-test-{name}-{}", std::process::id());
        Self::at(controller, &name)
    }

    /// The same at a path of several parts, each of which is made; the first one has to be the caller's own.
    pub fn at(controller: &str, path: &str) -> Self {
        let (top, version_2) = top(controller).unwrap_or_else(|| {
            mount();
            top(controller)
                .unwrap_or_else(|| panic!("no hierarchy of control groups with {controller}"))
        });
        let mut dir = top.clone();
        for part in path.split('/') {
            if version_2 {
                let control = dir.join("cgroup.subtree_control");
                write(&control, &format!("+{controller}"));
            }
            dir.push(part);
            fs::create_dir(&dir).expect("make a control group");
        }
        Self {
            dir,
            path: format!("/{path}"),
            version_2,
        }
    }

    /// Lets its processes have so much of each period of CPU time, in microseconds.
    pub fn set_quota(&self, quota_us: u64, period_us: u64) {
        if self.version_2 {
            self.write("cpu.max", &format!("{quota_us} {period_us}"));
        } else {
            self.write("cpu.cfs_period_us", &period_us.to_string());
            self.write("cpu.cfs_quota_us", &quota_us.to_string());
        }
    }

    /// Gives its processes nearly all of a CPU that others want too. Not more than that: the kernel's threads, which take probes away, are
    /// among the others, and with the greatest weight (262144) they wait for ten seconds and more.
    pub fn set_heaviest(&self) {
        if self.version_2 {
            self.write("cpu.weight", "10000");
        } else {
            self.write("cpu.shares", "32768");
        }
    }

    pub fn set_memory_limit(&self, bytes: u64) {
        let file = if self.version_2 {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        };
        self.write(file, &bytes.to_string());
    }

    /// A group of version 2 that needs no controller, and of which the kernel tells pressure; `None`: there is no such hierarchy.
    pub fn with_pressure(name: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
        let mut points = mounts.lines().filter_map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (*fields.get(2)? == "cgroup2").then(|| PathBuf::from(fields[1]))
        });
        let name = format!("trainprof-test-{name}-{}", std::process::id());
        let group = Self {
            dir: points.next()?.join(&name),
            path: format!("/{name}"),
            version_2: true,
        };
        fs::create_dir(&group.dir).expect("make a control group");
        group.dir.join("cpu.pressure").exists().then_some(group)
    }

    /// A group that can limit what is read from disks: the controller's name differs between the versions.
    pub fn of_disks(name: &str) -> Self {
        let version_1 = top("blkio").is_some();
        Self::new(if version_1 { "blkio" } else { "io" }, name)
    }

    /// Lets its processes read so many bytes a second from a disk, by `MAJOR:MINOR`.
    pub fn set_read_limit(&self, disk: &str, bytes_per_s: u64) {
        if self.version_2 {
            self.write("io.max", &format!("{disk} rbps={bytes_per_s}"));
        } else {
            let limit = format!("{disk} {bytes_per_s}");
            self.write("blkio.throttle.read_bps_device", &limit);
        }
    }

    /// Moves a process into it.
    pub fn put(&self, pid: i32) {
        self.write("cgroup.procs", &pid.to_string());
    }

    pub fn write(&self, file: &str, text: &str) {
        write(&self.dir.join(file), text);
    }

    pub fn read(&self, file: &str) -> String {
        let path = self.dir.join(file);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The number after a key of `cpu.stat` or `memory.stat`.
    pub fn stat(&self, file: &str, key: &str) -> u64 {
        let text = self.read(file);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        line.and_then(|number| number.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {key} in {file}: {text}"))
    }

    /// The total of a line of a pressure file (`some`, `full`), microseconds.
    pub fn stalled_us(&self, file: &str, kind: &str) -> u64 {
        let text = self.read(file);
        let mut lines = text.lines().filter(|line| line.starts_with(kind));
        let total = lines.next().and_then(|line| line.split_once("total="));
        total
            .and_then(|(_, total)| total.trim().parse().ok())
            .unwrap_or_else(|| panic!("no {kind} in {file}: {text}"))
    }

    /// Nanoseconds that it was throttled since it exists.
    pub fn throttled_ns(&self) -> u64 {
        if self.version_2 {
            self.stat("cpu.stat", "throttled_usec") * 1_000
        } else {
            self.stat("cpu.stat", "throttled_time")
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // A process that was killed a moment ago may still be there.
        for _ in 0..100 {
            if fs::remove_dir(&self.dir).is_ok() {
                let above = Path::new(&self.path).components().count() - 2;
                let mut parents = self.dir.ancestors().skip(1).take(above);
                return assert!(parents.all(|dir| fs::remove_dir(dir).is_ok()));
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        eprintln!("{} is left behind", self.dir.display());
    }
}

/// Where a hierarchy with the controller is mounted, and whether it is version 2.
fn top(controller: &str) -> Option<(PathBuf, bool)> {
    let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts");
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let (point, fs_type, options) = (fields.get(1)?, fields.get(2)?, fields.get(3)?);
        let point = PathBuf::from(point);
        match *fs_type {
            "cgroup" if options.split(',').any(|o| o == controller) => Some((point, false)),
            "cgroup2" => {
                let has = fs::read_to_string(point.join("cgroup.controllers")).ok()?;
                has.split_whitespace()
                    .any(|c| c == controller)
                    .then_some((point, true))
            }
            _ => None,
        }
    })
}

/// `MAJOR:MINOR` of the whole disk below a path: limits are set on disks, not on partitions. `None`: it lies on none.
pub fn disk_of(path: &Path) -> Option<String> {
    let device = fs::metadata(path).ok()?.dev();
    let name = format!("{}:{}", libc::major(device), libc::minor(device));
    let block = Path::new("/sys/dev/block").join(&name);
    if !block.join("partition").exists() {
        return block.exists().then_some(name);
    }
    let partition = fs::canonicalize(&block).ok()?;
    let disk = fs::read_to_string(partition.parent()?.join("dev")).ok()?;
    Some(disk.trim().to_owned())
}

fn mount() {
    let at = Path::new("/sys/fs/cgroup");
    let status = Command::new("mount")
        .args(["-t", "cgroup2", "none"])
        .arg(at)
        .status();
    assert!(
        status.as_ref().is_ok_and(|s| s.success()),
        "mount cgroup2 on {}: {status:?}",
        at.display()
    );
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{text} > {}: {error}", path.display()));
}
