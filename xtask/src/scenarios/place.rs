//! Where one run of a job happens: its folder, its data, what surrounds it. Taken down when dropped, the job's
//! surroundings before their control groups.

use std::{
    fs,
    ops::{Deref, DerefMut},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Map, Value, json};

use super::{
    catalogue::{Fixture, Scenario, Sort},
    data::{self, Folder},
    freezer::Freezer,
    group::{self, Group, Mount, Priority},
    param::Settings,
    process::{Listen, Process},
    random::Random,
};
use crate::cmd::{root, run};

/// Python with PyTorch, and the folders of the whole suite.
pub struct Ground {
    pub python: PathBuf,
    /// Of all runs; on a disk
    pub folder: Folder,
    pub priority: Priority,
}

impl Ground {
    /// A new folder with a name that no other one has.
    fn folder(&self, random: &mut Random) -> Result<Folder> {
        loop {
            let path = self.folder.0.join(random.word());
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Folder(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot make {}", path.display()));
                }
            }
        }
    }
}

/// A process that the report must name.
#[derive(Clone, Debug)]
pub struct Culprit {
    pub pid: u32,
    /// What it runs, where it is outside the job
    pub program: Option<String>,
}

/// Fields are dropped in this order: processes, mounts, groups, files.
pub struct Place {
    side: Vec<Process>,
    _mounts: Vec<Mount>,
    _limits: Vec<Group>,
    limit_dirs: Vec<PathBuf>,
    /// Of the job, and of neighbours that take the CPU from it
    freezer: Freezer,
    pub everything: Group,
    _folders: Vec<Folder>,
    _semaphores: Semaphores,
    pub job: PathBuf,
    pub script: String,
    pub log: PathBuf,
    /// Trainprof's argument and environment for a stand-in of the GPU's driver
    pub gpu: Option<(PathBuf, PathBuf)>,
    job_variables: Vec<(&'static str, String)>,
    /// Processes outside the job that are the cause
    pub named: Vec<Culprit>,
    /// What the side processes write their errors to
    side_folder: PathBuf,
    /// Data that must not come to be cached
    cold: Option<PathBuf>,
}

/// Data sets are made once for a run; the job without the fault has a copy.
pub struct Data {
    path: Option<PathBuf>,
    _folder: Folder,
}

impl Data {
    pub fn make(
        ground: &Ground,
        scenario: &Scenario,
        settings: &Settings,
        random: &mut Random,
    ) -> Result<Self> {
        let folder = ground.folder(random)?;
        let path = folder.0.join(random.word());
        let mut made = true;
        if scenario.fixtures.contains(&Fixture::Files) {
            let bytes = settings.get("file_kb")? * 1024.0;
            data::files(&path, settings.get("files")? as u64, bytes, random)?;
        } else if scenario.fixtures.contains(&Fixture::Blob) {
            data::blob(&path, settings.get("blob_mb")? as u64, random)?;
        } else if scenario.fixtures.contains(&Fixture::Folder) {
            fs::create_dir(&path)?;
        } else {
            made = false;
        }
        Ok(Self {
            path: made.then_some(path),
            _folder: folder,
        })
    }

    /// The same, in another folder. It is written to the disk, which would have to do that later.
    pub fn copy(&self, ground: &Ground, random: &mut Random) -> Result<Self> {
        let folder = ground.folder(random)?;
        let path = match &self.path {
            Some(from) => {
                let path = folder.0.join(random.word());
                run(Command::new("cp").arg("-r").arg(from).arg(&path))?;
                data::chill(&path)?;
                Some(path)
            }
            None => None,
        };
        Ok(Self {
            path,
            _folder: folder,
        })
    }
}

impl Place {
    /// `fault`: whether the cause is there. What surrounds a healthy job is always there.
    /// `units`: how much work a millisecond is, as an earlier job found out (an object).
    pub fn set_up(
        ground: &Ground,
        scenario: &Scenario,
        settings: &Settings,
        data: &Data,
        fault: bool,
        units: &Value,
        random: &mut Random,
    ) -> Result<Self> {
        let folders = [ground.folder(random)?, ground.folder(random)?];
        let [job, side_folder] = [0, 1].map(|index| folders[index].0.clone());
        // The job folder's name is no other's.
        let word = job.file_name().unwrap_or_default().display();
        let name = format!("{}-{word}", std::process::id());
        // Shared memory, so that timing touches no disk.
        let log = Path::new("/dev/shm").join(format!("{LOGS}{name}"));
        fs::create_dir(&log).with_context(|| format!("cannot make {}", log.display()))?;
        let folders = folders.into_iter().chain([Folder(log.clone())]).collect();
        let mut place = Self {
            side: Vec::new(),
            _mounts: Vec::new(),
            _limits: Vec::new(),
            limit_dirs: Vec::new(),
            freezer: Freezer::new(&name)?,
            everything: Group::new("cpuacct", &name)?,
            _folders: folders,
            _semaphores: Semaphores(format!("{LOGS}{name}")),
            script: random
                .pick(&["train.py", "main.py", "run.py", "fit.py"])
                .to_string(),
            job,
            log,
            gpu: None,
            job_variables: Vec::new(),
            named: Vec::new(),
            side_folder,
            cold: None,
        };
        let surroundings = fault || scenario.sort == Sort::Healthy;
        let address = place.surround(
            ground,
            scenario,
            settings,
            data,
            surroundings,
            &name,
            random,
        )?;
        place.copy_script(scenario)?;
        let warm_turns = if fault { 6 } else { 12 };
        let told = json!({
            "fault": fault && scenario.sort == Sort::Fault,
            "data": address,
            "log": place.log,
            "seed": random.next() >> 40,
            "warm_turns": warm_turns,
            "params": settings.json(),
            "units": units,
        });
        fs::write(place.job.join("job.json"), told.to_string())?;
        Ok(place)
    }

    /// Gives back what the job is to find its data by.
    #[expect(
        clippy::too_many_arguments,
        reason = "all that a job may find around it"
    )]
    fn surround(
        &mut self,
        ground: &Ground,
        scenario: &Scenario,
        settings: &Settings,
        data: &Data,
        there: bool,
        name: &str,
        random: &mut Random,
    ) -> Result<String> {
        let mut address = data
            .path
            .as_ref()
            .map(|path| path.display().to_string())
            .unwrap_or_default();
        for fixture in scenario.fixtures {
            match fixture {
                Fixture::Files | Fixture::Blob | Fixture::Folder => {}
                Fixture::ReadLimit | Fixture::WriteLimit if there => {
                    let path = data.path.as_ref().context("a limit takes data on a disk")?;
                    let (file, param) = match fixture {
                        Fixture::ReadLimit => {
                            // The interpreter's own files may be cold too; reading them is not part of the scenario.
                            run(Command::new(&ground.python)
                                .args(["-c", "import numpy, torch.utils.data"]))?;
                            data::chill(path)?;
                            self.cold = Some(path.clone());
                            ("blkio.throttle.read_bps_device", "read_mb_s")
                        }
                        _ => ("blkio.throttle.write_bps_device", "write_mb_s"),
                    };
                    let limit = Group::new("blkio", name)?;
                    let bytes = (settings.get(param)? * 1e6) as u64;
                    limit.set(file, &format!("{} {bytes}", group::disk_of(path)?))?;
                    self.limit(limit);
                }
                Fixture::ReadLimit => {
                    data::warm(data.path.as_ref().context("a limit takes data on a disk")?)?;
                }
                Fixture::WriteLimit => {}
                Fixture::Quota if there => {
                    let quota_us = (settings.get("cpus")? * 100_000.0) as u64;
                    self.limit(ground.priority.quota(name, quota_us)?);
                }
                Fixture::Neighbours if there => {
                    for _ in 0..settings.get("neighbours")? as u64 {
                        self.side(ground, "busy", &[], None, random)?;
                    }
                }
                Fixture::Bystanders => {
                    for _ in 0..settings.get("bystanders")? as u64 {
                        self.side(ground, "busy", &[], None, random)?;
                    }
                }
                Fixture::Store if there => {
                    let mount = Mount(self.side_folder.join(random.word()));
                    fs::create_dir(&mount.0)?;
                    let delays = self.side_settings(
                        &json!({
                            "getattr": settings.get("getattr_ms")?,
                            "open": settings.get("open_ms")?,
                            "read": settings.get("read_ms")?,
                        }),
                        random,
                    )?;
                    let seen = mount.0.display().to_string();
                    self.side(
                        ground,
                        "store",
                        &[seen.clone(), address, delays],
                        None,
                        random,
                    )?;
                    mount.wait()?;
                    address = seen;
                    self._mounts.push(mount);
                }
                Fixture::Objects => {
                    let late = if there { 1.0 } else { 0.0 };
                    let settings = self.side_settings(
                        &json!({
                            "late_ms": settings.get("late_ms")? * late,
                            "body_kb": settings.get("body_kb")?,
                            "mb_s": settings.get("mb_s")? * late,
                        }),
                        random,
                    )?;
                    address = self.side(ground, "objects", &[settings], Some("127"), random)?;
                }
                Fixture::Scanner if there => {
                    let settings =
                        self.side_settings(&json!({"late_ms": settings.get("late_ms")?}), random)?;
                    let folder = address.clone();
                    self.side(ground, "scan", &[folder, settings], Some("ready"), random)?;
                }
                Fixture::Quota | Fixture::Neighbours | Fixture::Store | Fixture::Scanner => {
                    if let Some(path) = &data.path {
                        data::warm(path)?;
                    }
                }
                Fixture::Gpu => address = self.stand_in_for_gpu(settings)?,
            }
        }
        Ok(address)
    }

    /// Stand-ins for the GPU's libraries: tests/workloads/gpu/fake_gpu.h.
    fn stand_in_for_gpu(&mut self, settings: &Settings) -> Result<String> {
        let libraries = self.side_folder.join("lib");
        run(Command::new("sh")
            .arg(root().join("tests/workloads/gpu/build.sh"))
            .arg(&libraries))?;
        let busy = self.log.join("device");
        let state = self.side_folder.join("state");
        fs::write(
            &state,
            format!("devices 1\ndevice 0 busy {}\n", busy.display()),
        )?;
        self.gpu = Some((libraries.join("libnvidia-ml.so.1"), state));
        let spin = settings.get("spin")? > 0.0;
        self.job_variables = vec![
            ("FAKE_GPU", busy.display().to_string()),
            (
                "FAKE_CUDA_WAIT",
                if spin { "spin" } else { "sleep" }.to_owned(),
            ),
            ("FAKE_CUDA_GBPS", settings.get("copy_gb_s")?.to_string()),
        ];
        Ok(libraries.join("libcudart.so.12").display().to_string())
    }

    fn limit(&mut self, group: Group) {
        self.limit_dirs.push(group.dir().to_owned());
        self._limits.push(group);
    }

    fn side_settings(&self, settings: &serde_json::Value, random: &mut Random) -> Result<String> {
        let path = self.side_folder.join(random.word() + ".json");
        fs::write(&path, settings.to_string())?;
        Ok(path.display().to_string())
    }

    /// Starts a process outside the job, under a name that says nothing; gives back the line that says it is ready.
    fn side(
        &mut self,
        ground: &Ground,
        script: &str,
        args: &[String],
        ready: Option<&str>,
        random: &mut Random,
    ) -> Result<String> {
        let name = random.word() + ".py";
        let source = root().join(format!("tests/scenarios/outside/{script}.py"));
        fs::copy(source, self.side_folder.join(&name))?;
        let mut argv = vec![ground.python.display().to_string(), name.clone()];
        argv.extend_from_slice(args);
        let mut groups = vec![self.everything.dir().to_owned()];
        // Servers must go on: a process that waits for one does not freeze.
        if script == "busy" {
            groups.push(self.freezer.dir().to_owned());
        }
        let mut process = Process::start(
            &argv,
            &self.side_folder,
            &groups,
            Listen::Output,
            &self.side_folder.join(format!("{name}.log")),
            &[],
        )?;
        let line = match ready {
            Some(begins) => process.line(begins, Duration::from_secs(10))?.1,
            None => String::new(),
        };
        self.named.push(Culprit {
            pid: process.pid(),
            program: Some(name),
        });
        self.side.push(process);
        Ok(line)
    }

    fn copy_script(&self, scenario: &Scenario) -> Result<()> {
        let sources = root().join("tests/scenarios");
        fs::copy(
            sources.join(format!("{}.py", scenario.script)),
            self.job.join(&self.script),
        )?;
        let kit = self.job.join("kit");
        fs::create_dir(&kit)?;
        for entry in fs::read_dir(sources.join("kit"))? {
            let entry = entry?;
            if entry.path().is_file() {
                fs::copy(entry.path(), kit.join(entry.file_name()))?;
            }
        }
        Ok(())
    }

    /// How much work a millisecond is, as the job found out.
    pub fn units(&self) -> Result<Value> {
        let mut units = Map::new();
        for entry in fs::read_dir(&self.log)? {
            let path = entry?.path();
            if let Some(name) = path
                .file_name()
                .and_then(|name| name.to_str()?.strip_prefix("units."))
            {
                let number: f64 = fs::read_to_string(&path)?.parse()?;
                units.insert(name.to_owned(), number.into());
            }
        }
        Ok(units.into())
    }

    /// Starts the job and waits until its loop is warm.
    pub fn start_job(&self, ground: &Ground) -> Result<Job<'_>> {
        let argv = [ground.python.display().to_string(), self.script.clone()];
        let mut groups = [self.everything.dir(), self.freezer.dir()]
            .map(Path::to_owned)
            .to_vec();
        groups.extend_from_slice(&self.limit_dirs);
        let process = Process::start(
            &argv,
            &self.job,
            &groups,
            Listen::Output,
            &self.side_folder.join("job.log"),
            &self.job_variables,
        )?;
        let mut job = Job {
            process,
            freezer: &self.freezer,
        };
        job.line("ready", Duration::from_secs(60))?;
        Ok(job)
    }

    /// Data that is to be read from the disk in each epoch is forgotten, so that no second epoch finds it cached.
    pub fn renew(&self) -> Result<()> {
        self.cold.as_deref().map_or(Ok(()), data::chill)
    }
}

/// A job that runs, or is frozen.
pub struct Job<'a> {
    process: Process,
    pub freezer: &'a Freezer,
}

impl Deref for Job<'_> {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Job<'_> {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl Drop for Job<'_> {
    /// Else it would not end when it is killed.
    fn drop(&mut self) {
        let _ = self.freezer.thaw();
    }
}

const LOGS: &str = "job-set-";

/// Semaphores that Python makes for workers that are not forked, by the beginning of their names (kit/job.py gives
/// it). Python's own process for that dies with the job.
struct Semaphores(String);

impl Drop for Semaphores {
    fn drop(&mut self) {
        remove_shared(&format!("sem.{}", self.0));
    }
}

/// Removes what lies in shared memory under names that begin so.
fn remove_shared(begins: &str) {
    for entry in fs::read_dir("/dev/shm").into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(begins) {
            let path = entry.path();
            let _ = if path.is_dir() {
                fs::remove_dir_all(path)
            } else {
                fs::remove_file(path)
            };
        }
    }
}

/// Removes what a suite left that was killed.
pub fn sweep(folder: &Path) {
    group::sweep();
    group::unmount_below(folder);
    let _ = fs::remove_dir_all(folder);
    remove_shared(LOGS);
    remove_shared(&format!("sem.{LOGS}"));
}
