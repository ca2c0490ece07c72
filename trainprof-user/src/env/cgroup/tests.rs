use super::*;
use std::fs;

const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
const INNER: &str = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210";
const POD: &str = "8dbc4a3e-2ac0-4a5e-9d8c-1f2e3d4c5b6a";

#[test]
fn paths_tell_containers_pods_and_jobs() {
    let slice_pod = POD.replace('-', "_");
    // path, container, runtime, pod, job
    type Row<'a> = (String, [Option<&'a str>; 4]);
    let cases: Vec<Row<'_>> = vec![
        ("/".into(), [None; 4]),
        (
            "/user.slice/user-1000.slice/session-2.scope".into(),
            [None; 4],
        ),
        (
            format!("/system.slice/docker-{ID}.scope"),
            [Some(ID), Some("docker"), None, None],
        ),
        (
            format!("/docker/{ID}"),
            [Some(ID), Some("docker"), None, None],
        ),
        (
            format!("/docker/{ID}/docker/{INNER}/x"),
            [Some(INNER), Some("docker"), None, None],
        ),
        (
            format!(
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice_pod}.slice/cri-containerd-{ID}.scope"
            ),
            [Some(ID), Some("containerd"), Some(POD), None],
        ),
        (
            format!("/kubepods.slice/kubepods-pod{slice_pod}.slice/crio-{ID}.scope/container"),
            [Some(ID), Some("cri-o"), Some(POD), None],
        ),
        (
            format!("/kubepods.slice/kubepods-pod{slice_pod}.slice/crio-conmon-{ID}.scope"),
            [None, None, Some(POD), None],
        ),
        (
            format!(
                "/system.slice/containerd.service/kubepods-besteffort-pod{slice_pod}.slice:cri-containerd:{ID}"
            ),
            [Some(ID), Some("containerd"), Some(POD), None],
        ),
        (
            format!("/kubepods/besteffort/pod{POD}/{ID}"),
            [Some(ID), None, Some(POD), None],
        ),
        (
            format!("/machine.slice/libpod-{ID}.scope/container"),
            [Some(ID), Some("podman"), None, None],
        ),
        (
            "/lxc.payload.web/init.scope".into(),
            [Some("web"), Some("lxc"), None, None],
        ),
        (
            "/lxc/train-1".into(),
            [Some("train-1"), Some("lxc"), None, None],
        ),
        (
            "/slurm/uid_1000/job_4711/step_0/task_0".into(),
            [None, None, None, Some("4711")],
        ),
        (
            "/system.slice/slurmstepd.scope/job_99/step_batch/user/task_0".into(),
            [None, None, None, Some("99")],
        ),
        (
            "/system.slice/node7_slurmstepd.scope/job_12/step_0".into(),
            [None, None, None, Some("12")],
        ),
        ("/batch/job_12".into(), [None; 4]),
        ("/podcasts/podium".into(), [None; 4]),
    ];
    for (path, [container, runtime, pod, job]) in cases {
        let expected = Identity {
            container_id: container.map(str::to_owned),
            container_runtime: runtime.map(str::to_owned),
            pod_uid: pod.map(str::to_owned),
            slurm_job_id: job.map(str::to_owned),
        };
        assert_eq!(decode_identity(&path), expected, "{path}");
    }
}

#[test]
fn memberships_keep_colons_in_paths() {
    let text = "9:name=systemd:/a:b\n4:cpu,cpuacct:/\n0::/x (deleted)\nbad\n1:cpu\n";
    let member = |controllers: &[&str], path: &str| Membership {
        controllers: controllers.iter().map(|&name| name.to_owned()).collect(),
        path: path.to_owned(),
    };
    assert_eq!(
        decode_memberships(text),
        [
            member(&["name=systemd"], "/a:b"),
            member(&["cpu", "cpuacct"], "/"),
            member(&[], "/x"),
        ]
    );
}

#[test]
fn limits_are_decoded_and_none_is_none() {
    for (text, expected) in [
        ("max", None),
        ("9223372036854771712", None),
        ("1073741824", Some(1 << 30)),
        ("-1", None),
        ("", None),
    ] {
        assert_eq!(decode_bytes(text), expected, "{text}");
    }
    let quota = |quota_us, period_us| {
        Some(CpuQuota {
            quota_us,
            period_us,
        })
    };
    for (text, expected) in [
        ("max 100000", None),
        ("150000 100000", quota(150_000, 100_000)),
        ("150000", None),
        ("1 0", None),
    ] {
        assert_eq!(decode_cpu_max(text), expected, "{text}");
    }
    assert_eq!(decode_quota("-1", "100000"), None);
}

#[test]
fn the_tightest_quota_is_the_smallest_share() {
    let of = |quota_us, period_us| CpuQuota {
        quota_us,
        period_us,
    };
    assert_eq!(of(100, 100).tighter(of(150, 200)), of(150, 200));
    assert_eq!(of(u64::MAX, 1).tighter(of(1, u64::MAX)), of(1, u64::MAX));
    assert_eq!(of(150_000, 100_000).cpus(), 1.5);
}

fn put(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    fs::create_dir_all(path.parent().expect("has one")).expect("a folder");
    fs::write(path, text).expect("a file");
}

/// Groups whose files are found through these mounts.
fn through(mounts: &str) -> Groups {
    Groups {
        mounts: Some(MountTable::decode(mounts)),
        ..Groups::default()
    }
}

#[test]
fn limits_are_read_once_for_all_processes_of_a_group_and_again_after_a_while() {
    let root = tempfile::tempdir().expect("a folder");
    let mounts = format!(
        "31 1 0:30 / {} rw - cgroup2 cgroup2 rw\n",
        root.path().display()
    );
    let mut groups = through(&mounts);
    let limit = |groups: &mut Groups, group: &str, bytes: &str| {
        put(root.path(), "a/memory.max", bytes);
        put(root.path(), "proc/cgroup", &format!("0::{group}\n"));
        let facts = CgroupFacts::read_from(&root.path().join("proc"), groups).expect("reads");
        facts.memory_limit_bytes
    };
    assert_eq!(limit(&mut groups, "/a", "4096\n"), Some(4096));
    assert_eq!(limit(&mut groups, "/a", "8192\n"), Some(4096));
    assert_eq!(limit(&mut groups, "/a/b", "8192\n"), Some(8192));
    // Who asks later has what is so then.
    let now = KtimeNs(FRESH_NS - 1);
    groups.read(now, std::process::id()).expect("our own");
    assert_eq!(limit(&mut groups, "/a", "8192\n"), Some(4096));
    groups
        .read(KtimeNs(FRESH_NS), std::process::id())
        .expect("our own");
    groups.mounts = Some(MountTable::decode(&mounts));
    assert_eq!(limit(&mut groups, "/a", "8192\n"), Some(8192));
}

#[test]
fn the_tightest_limit_on_the_way_up_counts() {
    let root = tempfile::tempdir().expect("a folder");
    let fs_root = root.path().join("fs");
    put(&fs_root, "a/memory.max", "4096000\n");
    put(&fs_root, "a/cpu.max", "50000 100000\n");
    put(&fs_root, "a/cpuset.cpus.effective", "0-7\n");
    put(&fs_root, "a/b/memory.max", "max\n");
    put(&fs_root, "a/b/cpu.max", "80000 100000\n");
    put(&fs_root, "a/b/cpuset.cpus.effective", "2-3\n");
    put(root.path(), "proc/cgroup", "0::/a/b\n");
    put(root.path(), "proc/environ", "SLURM_JOB_ID=17\0HOSTNAME=h\0");
    let mut groups = through(&format!(
        "31 1 0:30 / {} rw - cgroup2 cgroup2 rw\n",
        fs_root.display()
    ));
    let facts = CgroupFacts::read_from(&root.path().join("proc"), &mut groups).expect("reads");
    assert_eq!(
        facts,
        CgroupFacts {
            path_v2: Some("/a/b".into()),
            memory_limit_bytes: Some(4_096_000),
            cpu_quota: Some(CpuQuota {
                quota_us: 50_000,
                period_us: 100_000
            }),
            cpuset: Some("2-3".into()),
            slurm_job_id: Some("17".into()),
            ..CgroupFacts::default()
        }
    );
}

#[test]
fn hybrid_hosts_and_containers_without_a_cgroup_namespace_work() {
    let root = tempfile::tempdir().expect("a folder");
    put(root.path(), "memory/job/memory.limit_in_bytes", "2048000\n");
    put(
        root.path(),
        "memory/memory.limit_in_bytes",
        "9223372036854771712\n",
    );
    put(root.path(), "cpu/cpu.cfs_quota_us", "200000\n");
    put(root.path(), "cpu/cpu.cfs_period_us", "100000\n");
    put(
        root.path(),
        "proc/cgroup",
        &format!(
            "4:memory:/docker/{ID}/job\n2:cpu,cpuacct:/docker/{ID}\n1:cpuset:/../out\n0::/docker/{ID}\n"
        ),
    );
    let at = root.path().display();
    let mut groups = through(&format!(
        "1 1 0:1 /docker/{ID} {at}/memory rw - cgroup cgroup rw,memory\n\
         2 1 0:2 /docker/{ID} {at}/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
         3 1 0:3 / {at}/unified rw - cgroup2 cgroup2 rw\n"
    ));
    let facts = CgroupFacts::read_from(&root.path().join("proc"), &mut groups).expect("reads");
    assert_eq!(facts.memory_limit_bytes, Some(2_048_000));
    assert_eq!(facts.cpu_quota.map(|quota| quota.cpus()), Some(2.0));
    assert_eq!(
        facts.cpuset, None,
        "a group outside our namespace has no directory"
    );
    assert_eq!(facts.container_id.as_deref(), Some(ID));
    assert_eq!(facts.path_v1.len(), 3);
    assert_eq!(facts.pod_name, None);
}

#[test]
fn a_pod_is_named_by_its_environment() {
    let mut facts = CgroupFacts::default();
    let memberships = decode_memberships(&format!("0::/kubepods/pod{POD}/{ID}\n"));
    facts.add_identity(&memberships, "HOSTNAME=trainer-0\0POD_NAME=\0PATH=/bin\0");
    assert_eq!(facts.pod_name.as_deref(), Some("trainer-0"));
    facts.add_identity(&memberships, "HOSTNAME=node\0POD_NAME=bert-7\0");
    assert_eq!(facts.pod_name.as_deref(), Some("bert-7"));
}

#[test]
fn our_own_groups_can_be_read() {
    let mut groups = Groups::default();
    let facts = groups
        .read(KtimeNs(0), std::process::id())
        .expect("our own");
    let bytes = postcard::to_stdvec(&facts).expect("encodes");
    assert_eq!(
        postcard::from_bytes::<CgroupFacts>(&bytes).expect("decodes"),
        facts
    );
    assert!(
        groups
            .read(KtimeNs(0), u32::MAX)
            .expect_err("no such process")
            .is_gone()
    );
}

proptest::proptest! {
    #[test]
    fn any_text_is_a_list_of_groups(text in "([0-9]:|[a-z]*,?:|/[a-zé0-9._:-]*|pod|job_|slurm|\n){0,60}") {
        let mut facts = CgroupFacts::default();
        facts.add_identity(&decode_memberships(&text), &text);
    }
}
