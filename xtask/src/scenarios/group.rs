//! Control groups of a run. One holds every process of it, so that what others use can be told apart and nothing is
//! left running; others limit the job. Version 1 of the control groups is needed.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use super::{freezer, interrupt};

const ROOT: &str = "/sys/fs/cgroup";
const PREFIX: &str = "job-set-";
const CPU: &str = "cpu";
/// The freezer comes first: what is frozen does not end, whichever group it is to leave.
const CONTROLLERS: [&str; 4] = ["freezer", "cpuacct", "blkio", CPU];
/// Weight against the 1024 of all else, the kernel's own threads among it. With the greatest that a group can have, 256 times
/// as much, rcu_preempt waited 6.5 s for a CPU to run for less than 0.1 ms while neighbours of a job kept all CPUs busy, and
/// ksoftirqd 13 s: attaching probes, which takes several grace periods, did not end within 20 s. With this it is 0.5 s at
/// most, and a machine full of compilers at nice 19 gets less than a tenth of a CPU from such a job; with half of this a third.
const SHARES: &str = "32768";

/// What the suite needs of the host and does not find.
pub fn lack() -> Option<String> {
    let lacks = |controller: &&str| !Path::new(ROOT).join(controller).is_dir();
    let lacking = CONTROLLERS.into_iter().find(lacks)?;
    Some(format!("control groups v1 ({lacking})"))
}

pub struct Group {
    dir: PathBuf,
}

impl Group {
    pub fn new(controller: &str, name: &str) -> Result<Self> {
        let dir = Path::new(ROOT)
            .join(controller)
            .join(format!("{PREFIX}{name}"));
        fs::create_dir(&dir)
            .with_context(|| format!("cannot make {} (control groups v1)", dir.display()))?;
        Ok(Self { dir })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.dir.join(file);
        fs::write(&path, value).with_context(|| format!("cannot write {}", path.display()))
    }

    /// CPU time of all processes that were ever in it, of a cpuacct group.
    pub fn cpu_s(&self) -> Result<f64> {
        let text = fs::read_to_string(self.dir.join("cpuacct.usage"))?;
        Ok(text.trim().parse::<f64>()? / 1e9)
    }
}

/// While it is there, the suite and all that it starts get nearly all CPU time that they want.
pub struct Priority {
    group: Group,
}

impl Priority {
    pub fn take() -> Result<Self> {
        let group = Group::new(CPU, &std::process::id().to_string())?;
        group.set("cpu.shares", SHARES)?;
        group.set("cgroup.procs", "0")?;
        Ok(Self { group })
    }

    /// A group below it with a CPU quota, in microseconds of each 100 ms.
    pub fn quota(&self, name: &str, quota_us: u64) -> Result<Group> {
        let dir = self.group.dir.join(name);
        fs::create_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let group = Group { dir };
        group.set("cpu.cfs_quota_us", &quota_us.to_string())?;
        Ok(group)
    }
}

impl Drop for Priority {
    fn drop(&mut self) {
        // Removing a group ends what is in it: be out of it before.
        let _ = leave(CPU);
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.dir) {
            eprintln!("left behind: {error:#}");
        }
    }
}

/// Ends what is in a group and in those below, and removes it.
fn remove(dir: &Path) -> Result<()> {
    for below in fs::read_dir(dir).into_iter().flatten().flatten() {
        if below.path().is_dir() {
            remove(&below.path())?;
        }
    }
    // Up to 20 s: a killed profiler takes its probes out before it ends, with a wait of the kernel for each.
    for _ in 0..1000 {
        let Ok(pids) = fs::read_to_string(dir.join("cgroup.procs")) else {
            return Ok(());
        };
        for pid in pids.lines().filter_map(|line| line.parse::<i32>().ok()) {
            // SAFETY: kill has no memory preconditions; the processes of the group are the suite's own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        freezer::thaw(dir);
        if pids.is_empty() && fs::remove_dir(dir).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    bail!("{}", dir.display())
}

/// Puts this process back where what is in no group is.
pub fn leave(controller: &str) -> Result<()> {
    let file = Path::new(ROOT).join(controller).join("cgroup.procs");
    fs::write(&file, "0").with_context(|| format!("cannot write {}", file.display()))
}

/// Removes the groups that a suite left which was killed.
pub fn sweep() {
    for controller in CONTROLLERS {
        let Ok(entries) = fs::read_dir(Path::new(ROOT).join(controller)) else {
            continue;
        };
        for entry in entries.flatten() {
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                let _ = remove(&entry.path());
            }
        }
    }
}

/// `MAJOR:MINOR` of the whole disk below a path; limits are set on disks, not on partitions.
pub fn disk_of(path: &Path) -> Result<String> {
    let device = fs::metadata(path)?.dev();
    let name = format!("{}:{}", libc::major(device), libc::minor(device));
    let block = Path::new("/sys/dev/block").join(&name);
    if block.join("partition").exists() {
        let disk = fs::canonicalize(&block)?;
        let parent = disk.parent().context("a partition lies in its disk")?;
        return Ok(fs::read_to_string(parent.join("dev"))?.trim().to_owned());
    }
    if !block.exists() {
        bail!("{} lies on no disk of its own ({name})", path.display());
    }
    Ok(name)
}

/// CPU time that the whole machine used since its start.
pub fn machine_cpu_s() -> Result<f64> {
    let stat = fs::read_to_string("/proc/stat")?;
    let mut fields = stat
        .lines()
        .next()
        .unwrap_or_default()
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse::<f64>().unwrap_or(0.0));
    let mut next = || fields.next().unwrap_or(0.0);
    let (user, nice, system, _idle, _iowait, irq, softirq, steal) = (
        next(),
        next(),
        next(),
        next(),
        next(),
        next(),
        next(),
        next(),
    );
    // SAFETY: sysconf has no preconditions.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    Ok((user + nice + system + irq + softirq + steal) / per_second)
}

/// A mount that is taken down in the end.
pub struct Mount(pub PathBuf);

impl Mount {
    pub fn wait(&self) -> Result<()> {
        let parent = self.0.parent().context("a mount point has a parent")?;
        interrupt::wait_for("mounting", Duration::from_secs(10), || {
            let mounted = fs::metadata(&self.0).is_ok_and(|here| {
                fs::metadata(parent).is_ok_and(|above| above.dev() != here.dev())
            });
            Ok(mounted.then_some(()))
        })
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

fn unmount(path: &Path) {
    let _ = std::process::Command::new("umount")
        .arg("-l")
        .arg(path)
        .stderr(std::process::Stdio::null())
        .status();
}

/// Unmounts whatever a killed suite left mounted below a folder.
pub fn unmount_below(folder: &Path) {
    let Ok(mounts) = fs::read_to_string("/proc/self/mounts") else {
        return;
    };
    for path in mounts
        .lines()
        .filter_map(|line| line.split_whitespace().nth(1))
    {
        if Path::new(path).starts_with(folder) {
            unmount(Path::new(path));
        }
    }
}
