//! Where the job runs: machine, interpreter and framework, container and limits, and what watched it, in one line.

use super::units::{Page, bytes, count, wrapped};
use crate::{
    env::{cgroup::CgroupFacts, frameworks::FrameworkFacts},
    report::model::{Host, Report},
};

/// Characters of a container's or a pod's id that tell it from others.
const ID: usize = 12;
/// Libraries that have a word in the line.
const TOLD: [&str; 4] = ["torch", "tensorflow", "jaxlib", "cuda-runtime"];

pub fn place(out: &mut Page, report: &Report) -> std::fmt::Result {
    let parts: Vec<String> = report
        .host
        .iter()
        .map(machine)
        .chain(report.job.frameworks.iter().filter_map(software))
        .chain(report.job.cgroup.iter().filter_map(owner))
        .chain(report.job.cgroup.iter().filter_map(limits))
        .chain(report.host.iter().filter_map(watcher))
        .collect();
    if parts.is_empty() {
        return Ok(());
    }
    wrapped(out, "on: ", &parts.join("; "))
}

fn machine(host: &Host) -> String {
    let cpus = count(host.cpus as usize, "CPU", "CPUs");
    let model = host
        .cpu_model
        .as_ref()
        .map_or_else(String::new, |model| format!(" ({})", model.trim()));
    let memory = bytes(host.memory_bytes as f64);
    format!("Linux {}, {cpus}{model}, {memory} of memory", host.kernel)
}

fn watcher(host: &Host) -> Option<String> {
    let version = host.versions.get("trainprof")?;
    Some(format!("trainprof {version}"))
}

fn software(loaded: &FrameworkFacts) -> Option<String> {
    let libraries = TOLD.iter().filter(|name| loaded.has(name)).map(|name| {
        loaded
            .version(name)
            .map_or_else(|| (*name).to_owned(), |version| format!("{name} {version}"))
    });
    let python = loaded
        .python
        .iter()
        .map(|version| format!("Python {version}"));
    let parts: Vec<String> = python.chain(libraries).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

fn owner(group: &CgroupFacts) -> Option<String> {
    let container = group.container_id.as_ref().map(|id| {
        let runtime = group.container_runtime.as_deref().unwrap_or_default();
        let id: String = id.chars().take(ID).collect();
        format!("{runtime} container {id}").trim_start().to_owned()
    });
    let pod = group.pod_name.as_ref().or(group.pod_uid.as_ref());
    let parts: Vec<String> = container
        .into_iter()
        .chain(pod.map(|pod| format!("pod {pod}")))
        .chain(
            group
                .slurm_job_id
                .iter()
                .map(|id| format!("Slurm job {id}")),
        )
        .collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// What the job's control groups leave it of the machine.
fn limits(group: &CgroupFacts) -> Option<String> {
    let cpus = group.cpu_quota.map(|quota| {
        let cpus = (quota.cpus() * 100.0).round() / 100.0;
        format!("{cpus} {}", if cpus == 1.0 { "CPU" } else { "CPUs" })
    });
    let memory = group.memory_limit_bytes.map(|limit| bytes(limit as f64));
    let parts: Vec<String> = cpus.into_iter().chain(memory).collect();
    (!parts.is_empty()).then(|| format!("limited to {}", parts.join(" and ")))
}

#[cfg(test)]
mod tests {
    use crate::env::cgroup::CpuQuota;

    use super::*;

    #[test]
    fn only_what_is_known_is_told() {
        assert_eq!(software(&FrameworkFacts::default()), None);
        assert_eq!(owner(&CgroupFacts::default()), None);
        let loaded = FrameworkFacts {
            python: Some("3.11".into()),
            libraries: vec![
                ("glibc".into(), Some("2.36".into())),
                ("jaxlib".into(), None),
                ("torch".into(), Some("2.4.0+cu121".into())),
            ],
        };
        assert_eq!(
            software(&loaded).as_deref(),
            Some("Python 3.11, torch 2.4.0+cu121, jaxlib")
        );
        let group = CgroupFacts {
            container_id: Some("0123456789abcdef0123".into()),
            pod_uid: Some("a-b-c".into()),
            pod_name: Some("train-0".into()),
            slurm_job_id: Some("77".into()),
            ..CgroupFacts::default()
        };
        assert_eq!(
            owner(&group).as_deref(),
            Some("container 0123456789ab, pod train-0, Slurm job 77")
        );
        assert_eq!(limits(&group), None);
        let group = CgroupFacts {
            memory_limit_bytes: Some(8 << 30),
            cpu_quota: Some(CpuQuota {
                quota_us: 150_000,
                period_us: 100_000,
            }),
            ..group
        };
        assert_eq!(
            limits(&group).as_deref(),
            Some("limited to 1.5 CPUs and 8.6 GB")
        );
    }
}
