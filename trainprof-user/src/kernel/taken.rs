//! What is taken away from the probes at their start, to see that they do without and say so: members of kernel structures, and room
//! in tables. Kernels that lack the one are rare, and jobs that fill the other need more memory than hosts of tests have.
//!
//! Two variables of the environment, which no user needs: `TRAINPROF_WITHOUT` names members as in
//! [`trainprof_common::offsets::Offsets`], separated by commas; `TRAINPROF_ROOM` has tables with their numbers of entries
//! (`OPS_A=4,OPS_B=4`).

use std::env;

use trainprof_common::offsets::{KernelFacts, MISSING, Offsets};

/// See above.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    members: Vec<String>,
    /// Tables that get fewer entries, and how many.
    pub room: Vec<(String, u32)>,
}

impl Taken {
    /// What the environment asks for: mostly nothing.
    pub fn by_environment() -> Self {
        let var = |name| env::var(name).unwrap_or_default();
        Self::parse(&var("TRAINPROF_WITHOUT"), &var("TRAINPROF_ROOM"))
    }

    fn parse(without: &str, room: &str) -> Self {
        let words = |text: &str| -> Vec<String> {
            let words = text.split(',').map(str::trim);
            words
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect()
        };
        let table = |word: String| {
            let (table, entries) = word.split_once('=')?;
            Some((table.to_owned(), entries.parse().ok()?))
        };
        Self {
            members: words(without),
            room: words(room).into_iter().filter_map(table).collect(),
        }
    }

    /// Takes members away, and says of each that the kernel lacks it.
    pub fn take_from(
        &self,
        offsets: &mut Offsets,
        facts: &mut KernelFacts,
        mut lacks: impl FnMut(&'static str, &'static str, &'static str),
    ) {
        if self.members.is_empty() {
            return;
        }
        let is_taken = |name: &str| self.members.iter().any(|member| member == name);
        let mut words = offsets.words();
        for (word, (name, structure, member)) in words.iter_mut().zip(Offsets::MEMBERS) {
            if *word != MISSING && is_taken(name) {
                *word = MISSING;
                lacks(name, structure, member);
            }
        }
        *offsets = Offsets::from_words(&words);
        for (name, word) in [
            ("iowait", &mut facts.iowait_byte),
            ("page_head_bit", &mut facts.page_head_bit),
        ] {
            if is_taken(name) {
                *word = MISSING;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_is_taken_and_said() {
        let taken = Taken::parse("fdt_fd, inode_ino,no_such", "OPS_A=4,OPS_B=x");
        assert_eq!(taken.room, [("OPS_A".to_owned(), 4)]);
        let full = Offsets::resolve(|_, _| Some(8), |_, _, _| {});
        let (mut offsets, mut said) = (full, Vec::new());
        let mut facts = KernelFacts {
            iowait_byte: 1,
            iowait_mask: 1,
            page_head_bit: 1,
            page_size: 4096,
            file_block: 0,
            inode_block: 0,
            dentry_block: 0,
            objects: 0,
        };
        let before = facts;
        taken.take_from(&mut offsets, &mut facts, |name, structure, member| {
            said.push((name, structure, member));
        });
        assert_eq!(
            said,
            [("fdt_fd", "fdtable", "fd"), ("inode_ino", "inode", "i_ino")]
        );
        assert_eq!((offsets.fdt_fd, offsets.inode_ino), (MISSING, MISSING));
        assert_eq!(offsets.task_pid, full.task_pid);
        assert_eq!(facts, before);
        assert!(!offsets.tell_objects());
    }

    #[test]
    fn nothing_asked_for_is_nothing_taken() {
        assert_eq!(Taken::parse("", ""), Taken::default());
    }
}
