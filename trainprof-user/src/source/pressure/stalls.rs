//! Pressure stall totals, of the host and of control groups (Documentation/accounting/psi.rst, cgroup-v2.rst).

use super::groups::Groups;
use crate::{
    env::read_text,
    record::fact::{CgroupPressureSample, PressureTotals},
    time::KtimeNs,
};

/// Two lines of less than a hundred characters.
const LIMIT: u64 = 4096;

/// One sample for each group of version 2 that processes of the job are in. Version 1 has no such files, nor has a kernel or a
/// group that was told not to count (`cgroup.pressure`).
pub(super) fn read(at: KtimeNs, groups: &Groups) -> impl Iterator<Item = CgroupPressureSample> {
    groups.unified().filter_map(move |group| {
        let file = |name: &str| read_text(&group.dir.join(name), LIMIT).unwrap_or_default();
        let [cpu, io, memory] = ["cpu.pressure", "io.pressure", "memory.pressure"].map(file);
        let (pressure, cpu_full_us) = decode(&cpu, &io, &memory);
        let told = pressure != PressureTotals::default();
        told.then(|| CgroupPressureSample {
            at,
            cgroup: group.path.clone(),
            pressure,
            cpu_full_us,
        })
    })
}

/// The totals of three files, and for how long all threads wanted a CPU, which means something in a group only.
pub(super) fn decode(cpu: &str, io: &str, memory: &str) -> (PressureTotals, Option<u64>) {
    let totals = PressureTotals {
        cpu_some_us: total(cpu, "some"),
        io_some_us: total(io, "some"),
        io_full_us: total(io, "full"),
        memory_some_us: total(memory, "some"),
        memory_full_us: total(memory, "full"),
    };
    (totals, total(cpu, "full"))
}

/// The total of a line `some avg10=0.00 … total=12`, microseconds.
fn total(text: &str, kind: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        if words.next()? != kind {
            return None;
        }
        words.find_map(|word| word.strip_prefix("total=")?.parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_gives_its_totals() {
        let file = |some: u64, full: u64| {
            format!(
                "some avg10=0.00 avg60=1.50 avg300=0.00 total={some}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total={full}\n"
            )
        };
        let (totals, cpu_full) = decode(&file(1, 2), &file(3, 4), &file(5, 6));
        let expected = PressureTotals {
            cpu_some_us: Some(1),
            io_some_us: Some(3),
            io_full_us: Some(4),
            memory_some_us: Some(5),
            memory_full_us: Some(6),
        };
        assert_eq!((totals, cpu_full), (expected, Some(2)));
        assert_eq!(decode("", "", ""), (PressureTotals::default(), None));
    }

    #[test]
    fn totals_are_found_by_kind_alone() {
        for (text, some, full) in [
            // Before Linux 5.13 the CPU's file had one line.
            ("some avg10=0.00 total=7\n", Some(7), None),
            ("full total=9\nsome total=8\n", Some(8), Some(9)),
            ("some avg10=0.00\n", None, None),
            ("some total=-1\nfull total=x\n", None, None),
            ("something total=5\n", None, None),
            ("\n\n", None, None),
        ] {
            assert_eq!(
                (total(text, "some"), total(text, "full")),
                (some, full),
                "{text:?}"
            );
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_decoded(text in "((some|full) (total=[0-9]{0,22})?|.*)") {
            let _ = decode(&text, &text, &text);
        }
    }
}
