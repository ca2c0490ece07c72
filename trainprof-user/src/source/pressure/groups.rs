//! The control groups that the job's processes are in, and those above them.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    path::{Path, PathBuf},
    rc::Rc,
};

use crate::env::{
    cgroup::{self, MAX_DEPTH},
    mounts::MountTable,
    read_text,
};

/// Processes whose groups are read in one round; with more, the others have their turn in the next.
const PER_ROUND: usize = 1024;
/// Groups of one controller that are sampled.
const MOST: usize = 256;
/// Rounds that a group without processes of the job is still sampled, for its last account.
const LAST_ROUNDS: u32 = 3;

/// One control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// Path below the hierarchy's root.
    pub(super) path: String,
    /// Where its files are.
    pub(super) dir: PathBuf,
    pub(super) version: Version,
}

/// The version of a control group's hierarchy: its files have other names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    One,
    Two,
}

/// The groups from a process's own up to the topmost that is mounted.
#[derive(Debug, Default)]
struct Ways {
    cpu: Vec<Group>,
    memory: Vec<Group>,
    /// The process's own group of version 2, also where version 1 has all controllers: pressure needs none.
    unified: Option<Group>,
    /// Rounds since a process of the job was last seen there.
    left: u32,
}

/// Groups of all processes of the job.
#[derive(Default)]
pub(super) struct Groups {
    /// Our own mounts: it is through them that groups are read.
    mounts: Option<MountTable>,
    /// Text of /proc/PID/cgroup. Most processes of a job have the same one.
    of: BTreeMap<u32, Rc<str>>,
    ways: BTreeMap<Rc<str>, Ways>,
    /// The process that was read last.
    cursor: u32,
}

impl Groups {
    /// Learns where the processes are: they come, go and move.
    pub(super) fn follow<'a>(&mut self, pids: impl Iterator<Item = &'a u32>) {
        let alive: BTreeSet<u32> = pids.copied().collect();
        super::retain(&mut self.of, &alive);
        let turn: Vec<u32> = alive
            .range((Bound::Excluded(self.cursor), Bound::Unbounded))
            .chain(alive.range(..=self.cursor))
            .take(PER_ROUND)
            .copied()
            .collect();
        for pid in turn {
            self.cursor = pid;
            if let Ok(text) = read_text(Path::new(&format!("/proc/{pid}/cgroup")), 64 << 10) {
                self.put(pid, &text);
            }
        }
        self.ways.retain(|text, ways| {
            // One owner is this map itself.
            ways.left = if Rc::strong_count(text) > 1 {
                0
            } else {
                ways.left + 1
            };
            ways.left <= LAST_ROUNDS
        });
    }

    fn put(&mut self, pid: u32, text: &str) {
        if let Some((known, _)) = self.ways.get_key_value(text) {
            self.of.insert(pid, Rc::clone(known));
            return;
        }
        let mounts = self
            .mounts
            .get_or_insert_with(|| MountTable::read(std::process::id()).unwrap_or_default());
        let text: Rc<str> = text.into();
        let ways = Ways {
            cpu: way_up(&text, "cpu", mounts),
            memory: way_up(&text, "memory", mounts),
            unified: unified(&text, mounts),
            left: 0,
        };
        self.of.insert(pid, Rc::clone(&text));
        self.ways.insert(text, ways);
    }

    /// Groups that may have a CPU quota, each once.
    pub(super) fn cpu(&self) -> impl Iterator<Item = &Group> {
        distinct(self.ways.values().flat_map(|ways| &ways.cpu))
    }

    /// Groups of version 2 that processes are in, each once. The topmost is the host, and that is read by itself.
    pub(super) fn unified(&self) -> impl Iterator<Item = &Group> {
        let groups = self.ways.values().filter_map(|ways| ways.unified.as_ref());
        distinct(groups).filter(|group| group.dir.join("cgroup.type").exists())
    }

    /// Groups whose memory counts, each once, with all groups above it, itself first.
    pub(super) fn memory(&self) -> impl Iterator<Item = (&Group, &[Group])> {
        let mut seen = BTreeSet::new();
        self.ways
            .values()
            .flat_map(|ways| (0..ways.memory.len()).map(|level| &ways.memory[level..]))
            .filter_map(|way| Some((way.first()?, way)))
            .filter(move |(group, _)| seen.insert(&group.dir))
            .take(MOST)
    }

    /// Whether a process of the job is, or was, in the group itself and not only below it.
    pub(super) fn is_own(&self, group: &Group) -> bool {
        self.ways
            .values()
            .any(|ways| ways.memory.first().is_some_and(|own| own.dir == group.dir))
    }
}

fn distinct<'a>(groups: impl Iterator<Item = &'a Group>) -> impl Iterator<Item = &'a Group> {
    let mut seen = BTreeSet::new();
    groups
        .filter(move |group| seen.insert(&group.dir))
        .take(MOST)
}

/// The group that a process's text of /proc/PID/cgroup names for a controller, and those above it. Where
/// version 1 has the controller, version 2 has not.
fn way_up(text: &str, controller: &str, mounts: &MountTable) -> Vec<Group> {
    let memberships = cgroup::decode_memberships(text);
    let has = |m: &&cgroup::Membership| m.controllers.iter().any(|name| name == controller);
    let membership = memberships.iter().find(has);
    membership
        .or_else(|| memberships.iter().find(|m| m.is_v2()))
        .map_or_else(Vec::new, |membership| ancestors(membership, mounts))
}

/// The group of version 2 that a process's text of /proc/PID/cgroup names.
fn unified(text: &str, mounts: &MountTable) -> Option<Group> {
    let memberships = cgroup::decode_memberships(text);
    let membership = memberships.iter().find(|m| m.is_v2())?;
    ancestors(membership, mounts).into_iter().next()
}

/// A group and those above it, up to the topmost that is mounted.
fn ancestors(membership: &cgroup::Membership, mounts: &MountTable) -> Vec<Group> {
    let Some((dir, top)) = cgroup::locate(membership, mounts) else {
        return Vec::new();
    };
    let version = if membership.is_v2() {
        Version::Two
    } else {
        Version::One
    };
    let paths = Path::new(&membership.path).ancestors();
    dir.ancestors()
        .take(MAX_DEPTH)
        .take_while(|dir| dir.starts_with(&top))
        .zip(paths)
        .map(|(dir, path)| Group {
            path: path.to_string_lossy().into_owned(),
            dir: dir.to_owned(),
            version,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
29 23 0:25 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
30 29 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
31 29 0:27 /docker/ab /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
32 29 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
    const V2: &str = "30 29 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n";

    fn shown(text: &str, controller: &str, mountinfo: &str) -> Vec<(String, String, Version)> {
        way_up(text, controller, &MountTable::decode(mountinfo))
            .into_iter()
            .map(|group| (group.path, group.dir.display().to_string(), group.version))
            .collect()
    }

    #[test]
    fn ways_go_up_to_what_is_mounted() {
        let text = "12:memory:/docker/ab/x\n4:cpu,cpuacct:/docker/ab\n0::/system.slice\n";
        let one = |path: &str, dir: &str| (path.to_owned(), dir.to_owned(), Version::One);
        let two = |path: &str, dir: &str| (path.to_owned(), dir.to_owned(), Version::Two);
        assert_eq!(
            shown(text, "cpu", V1),
            [
                one("/docker/ab", "/sys/fs/cgroup/cpu,cpuacct/docker/ab"),
                one("/docker", "/sys/fs/cgroup/cpu,cpuacct/docker"),
                one("/", "/sys/fs/cgroup/cpu,cpuacct"),
            ]
        );
        // In a container that sees the host's paths, only its own part is mounted.
        assert_eq!(
            shown(text, "memory", V1),
            [
                one("/docker/ab/x", "/sys/fs/cgroup/memory/x"),
                one("/docker/ab", "/sys/fs/cgroup/memory"),
            ]
        );
        assert_eq!(
            shown("0::/a.slice/b.scope (deleted)\n", "memory", V2),
            [
                two("/a.slice/b.scope", "/sys/fs/cgroup/a.slice/b.scope"),
                two("/a.slice", "/sys/fs/cgroup/a.slice"),
                two("/", "/sys/fs/cgroup"),
            ]
        );
        for (text, mounts) in [
            ("", V1),
            ("0::/../outside\n", V2),
            ("3:cpuset:/a\n", V1),
            ("0::/x\n", ""),
        ] {
            assert_eq!(shown(text, "cpu", mounts), [], "{text:?}");
        }
    }

    #[test]
    fn version_two_may_lie_beside_version_one() {
        let dir = |text: &str, mounts: &str| {
            unified(text, &MountTable::decode(mounts)).map(|group| group.dir)
        };
        let both = "12:memory:/docker/ab\n0::/system.slice\n";
        let found = dir(both, V1);
        assert_eq!(found, Some("/sys/fs/cgroup/unified/system.slice".into()));
        let found = dir("0::/a/b\n", V2);
        assert_eq!(found, Some("/sys/fs/cgroup/a/b".into()));
        assert_eq!(dir("12:memory:/docker/ab\n", V1), None);
        assert_eq!(dir("0::/a\n", ""), None);
    }

    #[test]
    fn groups_are_shared_and_outlive_their_last_process_a_little() {
        let mut groups = Groups {
            mounts: Some(MountTable::decode(V2)),
            ..Groups::default()
        };
        for (pid, text) in [(1, "0::/a\n"), (2, "0::/a\n"), (3, "0::/a/b\n")] {
            groups.put(pid, text);
        }
        let paths = |groups: &Groups| -> BTreeSet<String> {
            groups.cpu().map(|group| group.path.clone()).collect()
        };
        let all: BTreeSet<String> = ["/", "/a", "/a/b"].map(String::from).into();
        assert_eq!(paths(&groups), all);
        assert_eq!(groups.cpu().count(), 3);
        assert_eq!(groups.memory().count(), 3);
        let (_, way) = groups
            .memory()
            .find(|(group, _)| group.path == "/a")
            .expect("the group");
        assert_eq!(way.len(), 2);
        assert!(groups.is_own(&way[0]) && !groups.is_own(&way[1]));
        for _ in 0..LAST_ROUNDS {
            groups.follow([].iter());
            assert_eq!(paths(&groups), all);
        }
        groups.follow([].iter());
        assert!(paths(&groups).is_empty());
    }

    #[test]
    fn with_many_processes_each_has_its_turn() {
        let mut groups = Groups::default();
        // No such processes: what counts is who is asked for.
        let pids: Vec<u32> = (5_000_000..5_000_000 + 2_500).collect();
        let mut last = Vec::new();
        for _ in 0..3 {
            groups.follow(pids.iter());
            last.push(groups.cursor - 5_000_000);
        }
        assert_eq!(last, [1023, 2047, 571]);
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_a_way_or_none(text in "([0-9]{0,3}:[a-z,]{0,8}:/[^\\n]{0,20}\\n|.*)*") {
            for mounts in [V1, V2] {
                let _ = shown(&text, "cpu", mounts);
            }
        }
    }
}
