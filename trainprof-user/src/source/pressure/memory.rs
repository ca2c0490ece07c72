//! Memory of control groups (Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst).

use std::{collections::BTreeMap, path::Path};

use super::{
    groups::{Group, Groups, Version},
    text::number,
};
use crate::{
    env::{cgroup::decode_bytes, read_text, read_value},
    record::fact::CgroupMemorySample,
    time::KtimeNs,
};

/// Longer than memory.stat of any kernel so far, which is about 4 KiB.
const LIMIT: u64 = 64 << 10;

/// One sample for each group that processes of the job are in, and for each above it that has a limit of its
/// own. A sample's limit is the tightest on the way up.
pub(super) fn read(at: KtimeNs, groups: &Groups) -> impl Iterator<Item = CgroupMemorySample> {
    let limits: BTreeMap<&Path, Option<u64>> = groups
        .memory()
        .map(|(group, _)| (group.dir.as_path(), read_limit(group)))
        .collect();
    let limit = move |group: &Group| limits.get(group.dir.as_path()).copied().flatten();
    groups.memory().filter_map(move |(group, way)| {
        let counts = limit(group).is_some() || groups.is_own(group);
        let tightest = way.iter().filter_map(&limit).min();
        counts.then(|| sample(at, group, tightest))?
    })
}

fn read_limit(group: &Group) -> Option<u64> {
    let name = match group.version {
        Version::One => "memory.limit_in_bytes",
        Version::Two => "memory.max",
    };
    decode_bytes(&read_value(group.dir.join(name))?)
}

/// `None` for a group that is gone, and for the root of version 2, which does not count.
fn sample(at: KtimeNs, group: &Group, limit_bytes: Option<u64>) -> Option<CgroupMemorySample> {
    let file = |name: &str| read_text(&group.dir.join(name), LIMIT).unwrap_or_default();
    let (usage, events) = match group.version {
        Version::One => ("memory.usage_in_bytes", "memory.oom_control"),
        Version::Two => ("memory.current", "memory.events"),
    };
    let usage_bytes = read_value(group.dir.join(usage))?.parse().ok()?;
    let stat = decode_stat(group.version, &file("memory.stat"));
    Some(CgroupMemorySample {
        at,
        cgroup: group.path.clone(),
        usage_bytes,
        limit_bytes,
        file_bytes: stat.file,
        anon_bytes: stat.anon,
        refaults_file: stat.refaults,
        oom_kills: number(&file(events), "oom_kill"),
    })
}

/// What is taken from memory.stat.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stat {
    file: Option<u64>,
    anon: Option<u64>,
    refaults: Option<u64>,
}

/// Both with the groups below: version 1 has sums of their own for that, version 2 counts so always.
fn decode_stat(version: Version, text: &str) -> Stat {
    match version {
        Version::One => Stat {
            file: of_files(number(text, "total_cache"), number(text, "total_shmem")),
            anon: number(text, "total_rss"),
            refaults: number(text, "total_workingset_refault_file")
                .or_else(|| number(text, "workingset_refault_file")),
        },
        Version::Two => Stat {
            file: of_files(number(text, "file"), number(text, "shmem")),
            anon: number(text, "anon"),
            refaults: number(text, "workingset_refault_file"),
        },
    }
}

/// Page cache that can be dropped. The kernel counts shared memory and files of a tmpfs into the page cache too, but they go nowhere
/// except to swap.
fn of_files(cache: Option<u64>, shared: Option<u64>) -> Option<u64> {
    Some(cache?.saturating_sub(shared.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "cache 9412608\nrss 10665984\nshmem 9068544\nworkingset_refault_anon 0\nworkingset_refault_file 6915\nhierarchical_memory_limit 9223372036854771712\ntotal_cache 20889600\ntotal_rss 18137088\ntotal_shmem 9089600\ntotal_workingset_refault_anon 0\ntotal_workingset_refault_file 11664422\n";
    const V2: &str = "anon 1024\nfile 4096\nkernel 12\nshmem 1096\nfile_mapped 7\nworkingset_refault_anon 1\nworkingset_refault_file 33\n";

    fn stat(file: u64, anon: u64, refaults: u64) -> Stat {
        Stat {
            file: Some(file),
            anon: Some(anon),
            refaults: Some(refaults),
        }
    }

    #[test]
    fn both_versions() {
        assert_eq!(
            decode_stat(Version::One, V1),
            stat(11_800_000, 18_137_088, 11_664_422)
        );
        assert_eq!(decode_stat(Version::Two, V2), stat(3_000, 1_024, 33));
        assert_eq!(decode_stat(Version::One, ""), Stat::default());
        assert_eq!(decode_stat(Version::Two, V1).anon, None);
    }

    #[test]
    fn shared_memory_is_no_file_that_can_be_dropped() {
        for (version, text, file) in [
            (Version::One, "total_cache 50\ntotal_shmem 50\n", Some(0)),
            (Version::Two, "file 50\nshmem 20\n", Some(30)),
            // Read one after the other, while both change.
            (Version::Two, "file 50\nshmem 51\n", Some(0)),
            (Version::Two, "file 50\n", Some(50)),
            (Version::Two, "shmem 20\n", None),
        ] {
            assert_eq!(decode_stat(version, text).file, file, "{text}");
        }
    }

    #[test]
    fn files_of_a_group_become_a_sample() {
        let dir = tempfile::tempdir().expect("a folder");
        let put =
            |name: &str, text: &str| std::fs::write(dir.path().join(name), text).expect("a file");
        let group = |version| Group {
            path: "/job".into(),
            dir: dir.path().to_owned(),
            version,
        };
        assert_eq!(sample(KtimeNs(1), &group(Version::Two), None), None);
        put("memory.current", "5000\n");
        put("memory.max", "max\n");
        put("memory.stat", V2);
        put("memory.events", "low 0\nhigh 0\nmax 4\noom 2\noom_kill 1\n");
        let two = sample(KtimeNs(1), &group(Version::Two), Some(9)).expect("a sample");
        assert_eq!(
            (two.usage_bytes, two.limit_bytes, two.oom_kills),
            (5_000, Some(9), Some(1))
        );
        assert_eq!(read_limit(&group(Version::Two)), None);
        put("memory.usage_in_bytes", "6000\n");
        put("memory.limit_in_bytes", "104857600\n");
        put("memory.stat", V1);
        put(
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
        );
        let one = sample(KtimeNs(1), &group(Version::One), None).expect("a sample");
        assert_eq!((one.usage_bytes, one.oom_kills), (6_000, Some(3)));
        assert_eq!(read_limit(&group(Version::One)), Some(104_857_600));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_decoded(text in ".*") {
            let _ = (decode_stat(Version::One, &text), decode_stat(Version::Two, &text));
        }
    }
}
