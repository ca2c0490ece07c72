//! Where a job runs, as its control groups tell: container, pod, batch job and limits.

use serde_json::{Value, json};
use trainprof_tests::cgroup::Group;
use trainprof_tests::env::root_test;
use trainprof_tests::{Checks, Workload, observe_with};

const ID: &str = "3f2a9c41d07b5e886a1c4f90b2d3e5f7081929394a5b6c7d8e9fa0b1c2d3e4f5";

#[test]
fn containers_pods_and_batch_jobs_are_told() {
    let Some(_turn) = root_test("containers_pods_and_batch_jobs_are_told") else {
        return;
    };
    let pod = "kubepods-burstable-pod0a1b2c3d_4e5f_6071_8293_a4b5c6d7e8f9.slice";
    let cases = [
        (
            format!("docker-{ID}.scope"),
            json!({"container_id": ID, "container_runtime": "docker", "pod_uid": null, "slurm_job_id": null}),
        ),
        (
            format!("kubepods-burstable.slice/{pod}/cri-containerd-{ID}.scope"),
            json!({
                "container_id": ID,
                "container_runtime": "containerd",
                "pod_uid": "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9",
                "slurm_job_id": null,
            }),
        ),
        (
            "slurm/uid_1000/job_4711/step_0/task_0".to_owned(),
            json!({"container_id": null, "container_runtime": null, "pod_uid": null, "slurm_job_id": "4711"}),
        ),
    ];
    let mut checks = Checks::new();
    for (path, expected) in cases {
        // In a group of the test's own, so that it clashes with nothing of the host.
        let path = format!("trainprof-test-{}/{path}", std::process::id());
        let group = Group::at("memory", &path);
        group.set_memory_limit(3 << 30);
        let workload = Workload::start("sleeper", [""; 0]);
        group.put(workload.pid());
        let pid = workload.pid();
        let seen = observe_with(workload, pid, &[]);
        let told = seen.report.at("/job/cgroup").clone();
        for (key, value) in expected.as_object().expect("an object") {
            checks.that(told.get(key) == Some(value), || {
                format!("{path}: {key} is {value}: {told}")
            });
        }
        checks.exact(
            "limit",
            3 << 30,
            told["memory_limit_bytes"].as_u64().unwrap_or(0),
        );
        let member = match group.version_2 {
            true => told["path_v2"] == group.path,
            false => told["path_v1"].as_array().is_some_and(|all| {
                let mut all = all.iter();
                all.any(|one| one[1] == group.path && has(&one[0], "memory"))
            }),
        };
        checks.that(member, || format!("{path}: in {told}"));
    }
    checks.done();
}

fn has(controllers: &Value, name: &str) -> bool {
    let names = controllers.as_str().unwrap_or_default();
    names.split(',').any(|one| one == name)
}
