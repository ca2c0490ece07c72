//! The control groups of a process: its limits, and the container, pod or batch job that they stand for.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::mounts::MountTable;
use super::{EnvError, read_text, read_value};
use crate::time::KtimeNs;

/// Deeper hierarchies are not walked to the end (containers in pods in slices come to about ten levels).
pub(crate) const MAX_DEPTH: usize = 64;

/// The control groups of one process.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct CgroupFacts {
    /// (controllers, path) of each version 1 hierarchy; controllers that share one have a comma between.
    pub path_v1: Vec<(String, String)>,
    /// The path in the version 2 hierarchy.
    pub path_v2: Option<String>,
    /// The tightest memory limit from the process's group up to the root of what is mounted, in bytes; `None`
    /// where there is no limit or none could be read.
    pub memory_limit_bytes: Option<u64>,
    /// The tightest CPU quota on the same way.
    pub cpu_quota: Option<CpuQuota>,
    /// The processors that the group may use, as a list such as `0-3,8`.
    pub cpuset: Option<String>,
    /// The container's id, or its name for lxc.
    pub container_id: Option<String>,
    /// `docker`, `containerd`, `cri-o`, `podman` or `lxc`, where the path says which.
    pub container_runtime: Option<String>,
    /// The Kubernetes pod's uid, with hyphens.
    pub pod_uid: Option<String>,
    /// The pod's name as its own environment has it (`POD_NAME`, else `HOSTNAME`); only for pods.
    pub pod_name: Option<String>,
    /// The Slurm job's number, from the path or else from `SLURM_JOB_ID`.
    pub slurm_job_id: Option<String>,
}

/// Processor time that a group may use: `quota_us` in every `period_us`, both in microseconds.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
pub struct CpuQuota {
    /// Time on any processor, in microseconds.
    pub quota_us: u64,
    /// The period that it is given for, in microseconds.
    pub period_us: u64,
}

impl CpuQuota {
    /// The quota as a number of processors.
    pub fn cpus(&self) -> f64 {
        self.quota_us as f64 / self.period_us as f64
    }

    fn tighter(self, other: CpuQuota) -> CpuQuota {
        let left = u128::from(self.quota_us) * u128::from(other.period_us);
        let right = u128::from(other.quota_us) * u128::from(self.period_us);
        if left <= right { self } else { other }
    }
}

impl CgroupFacts {
    /// The path of the group that a controller counts the process in: of version 1 where that has the controller, else of version 2.
    pub fn path_of(&self, controller: &str) -> Option<&str> {
        let has = |(names, _): &&(String, String)| names.split(',').any(|name| name == controller);
        let v1 = self.path_v1.iter().find(has).map(|(_, path)| path.as_str());
        v1.or(self.path_v2.as_deref())
    }

    /// Whether they stand for a container, a pod or a batch job.
    pub fn names_owner(&self) -> bool {
        self.container_id.is_some() || self.pod_uid.is_some() || self.slurm_job_id.is_some()
    }

    /// Nothing but the limits of the groups in the lines of `/proc/PID/cgroup`.
    fn limits_of(memberships: &[Membership], mounts: &MountTable) -> CgroupFacts {
        let mut facts = CgroupFacts::default();
        for membership in memberships {
            if let Some((dir, top)) = locate(membership, mounts) {
                facts.add_limits(membership, &dir, &top);
            }
        }
        facts
    }

    fn read_from(process: &Path, groups: &mut Groups) -> Result<CgroupFacts, EnvError> {
        let text = read_text(&process.join("cgroup"), 256 << 10)?;
        let memberships = decode_memberships(&text);
        let mut facts = groups.limits(text, &memberships);
        let environ = read_text(&process.join("environ"), 1 << 20).unwrap_or_default();
        facts.add_identity(&memberships, &environ);
        for membership in memberships {
            if membership.is_v2() {
                facts.path_v2 = Some(membership.path);
            } else {
                facts
                    .path_v1
                    .push((membership.controllers.join(","), membership.path));
            }
        }
        Ok(facts)
    }

    /// Tightens the limits by those of `dir` and every group above it, up to `top`.
    fn add_limits(&mut self, membership: &Membership, dir: &Path, top: &Path) {
        let groups = dir
            .ancestors()
            .take(MAX_DEPTH)
            .take_while(|group| group.starts_with(top));
        for group in groups {
            let file = |name: &str| read_value(group.join(name));
            let limits = if membership.is_v2() {
                Limits {
                    memory: file("memory.max").and_then(|text| decode_bytes(&text)),
                    cpu: file("cpu.max").and_then(|text| decode_cpu_max(&text)),
                    cpuset: file("cpuset.cpus.effective"),
                }
            } else {
                Limits {
                    memory: file("memory.limit_in_bytes").and_then(|text| decode_bytes(&text)),
                    cpu: file("cpu.cfs_quota_us")
                        .zip(file("cpu.cfs_period_us"))
                        .and_then(|(quota, period)| decode_quota(&quota, &period)),
                    cpuset: file("cpuset.effective_cpus").or_else(|| file("cpuset.cpus")),
                }
            };
            self.tighten(limits);
        }
    }

    fn tighten(&mut self, limits: Limits) {
        self.memory_limit_bytes = self
            .memory_limit_bytes
            .into_iter()
            .chain(limits.memory)
            .min();
        self.cpu_quota = match (self.cpu_quota, limits.cpu) {
            (Some(a), Some(b)) => Some(a.tighter(b)),
            (a, b) => a.or(b),
        };
        // The deepest group that has the controller: the kernel has already intersected it with those above.
        if self.cpuset.is_none() {
            self.cpuset = limits.cpuset;
        }
    }

    fn add_identity(&mut self, memberships: &[Membership], environ: &str) {
        for membership in memberships {
            let identity = decode_identity(&membership.path);
            if self.container_id.is_none() && identity.container_id.is_some() {
                self.container_id = identity.container_id;
                self.container_runtime = identity.container_runtime;
            }
            self.pod_uid = self.pod_uid.take().or(identity.pod_uid);
            self.slurm_job_id = self.slurm_job_id.take().or(identity.slurm_job_id);
        }
        if self.slurm_job_id.is_none() {
            self.slurm_job_id = variable(environ, "SLURM_JOB_ID").filter(|id| is_number(id));
        }
        if self.pod_uid.is_some() {
            self.pod_name = variable(environ, "POD_NAME").or_else(|| variable(environ, "HOSTNAME"));
        }
    }
}

/// Control groups that were read, for all processes in them: a job that starts hundreds of programs a second has them in the same ones, and each of
/// some ten hierarchies has limits at each level.
#[derive(Default)]
pub struct Groups {
    /// Our own mounts: it is through them that limits are read.
    mounts: Option<MountTable>,
    /// Limits by the text of `/proc/PID/cgroup`.
    limits: HashMap<String, CgroupFacts>,
    read_at: KtimeNs,
}

/// For so many nanoseconds limits count as they were read.
const FRESH_NS: u64 = 2_000_000_000;

impl Groups {
    /// Reads the groups of a process: `/proc/PID/cgroup`, the limits of every group above it
    /// (`cgroups(7)`; Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ in the kernel), and three variables of
    /// its environment. Limits may have been read for another process in the same groups, less than two seconds before `now`.
    ///
    /// # Errors
    /// When the process has ended. Limits and variables that may not be read are `None`.
    pub fn read(&mut self, now: KtimeNs, pid: u32) -> Result<CgroupFacts, EnvError> {
        if now.0 >= self.read_at.0 + FRESH_NS {
            *self = Groups {
                read_at: now,
                ..Groups::default()
            };
        }
        CgroupFacts::read_from(&PathBuf::from(format!("/proc/{pid}")), self)
    }

    fn limits(&mut self, text: String, memberships: &[Membership]) -> CgroupFacts {
        let own = || MountTable::read(std::process::id()).unwrap_or_default();
        let mounts = self.mounts.get_or_insert_with(own);
        let read = || CgroupFacts::limits_of(memberships, mounts);
        self.limits.entry(text).or_insert_with(read).clone()
    }
}

struct Limits {
    memory: Option<u64>,
    cpu: Option<CpuQuota>,
    cpuset: Option<String>,
}

/// One line of `/proc/PID/cgroup`.
#[derive(Debug, PartialEq)]
pub(crate) struct Membership {
    /// Empty for version 2. A named hierarchy of version 1 is `name=NAME`.
    pub(crate) controllers: Vec<String>,
    pub(crate) path: String,
}

impl Membership {
    pub(crate) fn is_v2(&self) -> bool {
        self.controllers.is_empty()
    }
}

/// Lines are `ID:CONTROLLERS:PATH`; only the path may have a colon in it.
pub(crate) fn decode_memberships(text: &str) -> Vec<Membership> {
    let line = |line: &str| {
        let mut fields = line.splitn(3, ':');
        let _hierarchy: u32 = fields.next()?.parse().ok()?;
        let controllers = fields.next()?.split(',').filter(|name| !name.is_empty());
        let controllers = controllers.map(str::to_owned).collect();
        let path = fields.next().filter(|path| path.starts_with('/'))?;
        // The group of a process may have been removed below it.
        let path = path.strip_suffix(" (deleted)").unwrap_or(path).to_owned();
        Some(Membership { controllers, path })
    };
    text.lines().filter_map(line).collect()
}

/// Where the group's files are, and the topmost directory of its hierarchy that is mounted here.
///
/// Both the path and the mount's root are relative to our own cgroup namespace (`cgroup_namespaces(7)`). A group
/// outside it (`/../…`) has no directory here.
pub(crate) fn locate(membership: &Membership, mounts: &MountTable) -> Option<(PathBuf, PathBuf)> {
    if Path::new(&membership.path)
        .components()
        .any(|part| part.as_os_str() == "..")
    {
        return None;
    }
    let serves = |fs_type: &str, options: &str| match (membership.is_v2(), fs_type) {
        (true, "cgroup2") => true,
        (false, "cgroup") => membership
            .controllers
            .iter()
            .all(|controller| options.split(',').any(|option| option == controller)),
        _ => false,
    };
    mounts
        .mounts()
        .iter()
        .filter(|mount| serves(&mount.fs_type, &mount.options))
        .find_map(|mount| {
            let inside = Path::new(&membership.path).strip_prefix(&mount.root).ok()?;
            let top = PathBuf::from(&mount.mount_point);
            Some((top.join(inside), top))
        })
}

/// A limit in bytes. Version 2 prints `max` for none; version 1 prints the largest number of whole pages,
/// just below 2^63 (`PAGE_COUNTER_MAX`). No machine has 2^60 bytes.
pub(crate) fn decode_bytes(text: &str) -> Option<u64> {
    text.parse().ok().filter(|&bytes| bytes < 1 << 60)
}

/// `QUOTA PERIOD`, with `max` for no quota.
pub(crate) fn decode_cpu_max(text: &str) -> Option<CpuQuota> {
    let (quota, period) = text.split_once(' ')?;
    decode_quota(quota, period)
}

/// A quota of -1 (version 1) or `max` (version 2) is none.
pub(crate) fn decode_quota(quota_us: &str, period_us: &str) -> Option<CpuQuota> {
    let quota_us = quota_us.parse().ok()?;
    let period_us = period_us.trim().parse().ok().filter(|&period| period > 0)?;
    Some(CpuQuota {
        quota_us,
        period_us,
    })
}

/// What a control group's path says of whom it belongs to.
#[derive(Debug, Default, PartialEq)]
struct Identity {
    container_id: Option<String>,
    container_runtime: Option<String>,
    pod_uid: Option<String>,
    slurm_job_id: Option<String>,
}

/// Reads the names that container runtimes, the kubelet and Slurm give to their groups. The deepest container
/// wins: a container inside a container is the one that the process sees.
fn decode_identity(path: &str) -> Identity {
    let mut identity = Identity::default();
    let mut above: Option<&str> = None;
    let mut in_slurm = false;
    for part in path.split('/').filter(|part| !part.is_empty()) {
        if let Some(uid) = pod_uid(part) {
            identity.pod_uid = Some(uid);
        }
        if let Some((id, runtime)) = container(part, above) {
            identity.container_id = Some(id.to_owned());
            identity.container_runtime = runtime.map(str::to_owned);
        }
        // Version 1: /slurm/uid_N/job_N/step_N. Version 2: /system.slice/slurmstepd.scope/job_N, or with the
        // node's name before it (NODE_slurmstepd.scope, slurm_NODE).
        in_slurm |= part.starts_with("slurm") || part.ends_with("_slurmstepd.scope");
        if let (true, Some(job)) = (
            in_slurm,
            part.strip_prefix("job_").filter(|id| is_number(id)),
        ) {
            identity.slurm_job_id = Some(job.to_owned());
        }
        above = Some(part);
    }
    identity
}

/// The container that a group is named after: with systemd as manager `RUNTIME-ID.scope`, otherwise `ID` alone
/// or below a group with the runtime's name.
fn container<'a>(part: &'a str, above: Option<&str>) -> Option<(&'a str, Option<&'static str>)> {
    const PREFIXES: [(&str, &str); 6] = [
        ("docker-", "docker"),
        ("cri-containerd-", "containerd"),
        ("nerdctl-", "containerd"),
        ("crio-", "cri-o"),
        ("libpod-payload-", "podman"),
        ("libpod-", "podman"),
    ];
    let scope = part.strip_suffix(".scope").unwrap_or(part);
    for (prefix, runtime) in PREFIXES {
        if let Some(id) = scope.strip_prefix(prefix).filter(|id| is_container_id(id)) {
            return Some((id, Some(runtime)));
        }
    }
    // containerd without systemd, told to use systemd's names: SLICE:cri-containerd:ID.
    if let Some((_, id)) = part
        .rsplit_once(":cri-containerd:")
        .filter(|(_, id)| is_container_id(id))
    {
        return Some((id, Some("containerd")));
    }
    if is_container_id(part) {
        return Some((
            part,
            above.filter(|&above| above == "docker").map(|_| "docker"),
        ));
    }
    let lxc = part
        .strip_prefix("lxc.payload.")
        .or_else(|| (above == Some("lxc")).then_some(part));
    lxc.filter(|name| !name.is_empty())
        .map(|name| (name, Some("lxc")))
}

/// Container runtimes use 256 random bits as hexadecimal digits.
fn is_container_id(text: &str) -> bool {
    text.len() == 64 && is_hex(text)
}

fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The kubelet names a pod's group `podUID` (cgroupfs) or `kubepods[-QOS]-podUID.slice` with underscores for
/// hyphens (systemd). Pods from files on the node have a uid of 32 digits without hyphens.
fn pod_uid(part: &str) -> Option<String> {
    let part = part.split(':').next().unwrap_or(part);
    let name = match part.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1,
        None => part.strip_prefix("pod")?,
    };
    let uid = name.replace('_', "-");
    let digits = uid.replace('-', "");
    (digits.len() == 32 && is_hex(&digits)).then_some(uid)
}

/// A variable of an environment block (entries with a zero byte between), unless it is empty.
fn variable(environ: &str, name: &str) -> Option<String> {
    let value = environ
        .split('\0')
        .find_map(|entry| entry.strip_prefix(name)?.strip_prefix('='))?;
    super::non_empty(value)
}

#[cfg(test)]
mod tests;
