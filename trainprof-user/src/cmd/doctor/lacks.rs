//! What a kernel does not offer to our probes, by name, and which kernel does.

use trainprof_common::offsets::{MISSING, Offsets};

use crate::{
    doctor::{Check, Status},
    env::host::KernelVersion,
    kernel::plan::{CATALOGUE, Decision, Probe, decide, untold},
};

/// From here on kernels have every member and tracepoint that is asked for, under one of the names that are tried.
const HAS_ALL: KernelVersion = KernelVersion { major: 6, minor: 1 };
/// The newest that was tested: a later one may have given something another name.
const NEWEST_TESTED: KernelVersion = KernelVersion {
    major: 6,
    minor: 18,
};

/// A member that this kernel's structures do not have: name of the offset, structure, path.
pub type Member = (&'static str, &'static str, &'static str);

/// One check for each member or probe that the kernel does not offer.
pub fn checks(
    missing: &[Member],
    offsets: &Offsets,
    has_tracepoint: impl Fn(&str) -> bool,
    running: Option<KernelVersion>,
) -> Vec<Check> {
    let mut checks = Vec::new();
    for (offset, structure, member) in missing {
        let found = format!("no {structure}.{member}");
        let check = Check::ok("kernel member", found, &format!("what reads {offset}"));
        checks.push(check.but(Status::Warning, cure(offset, running)));
    }
    for probe in CATALOGUE.iter() {
        let (found, lacked) = match decide(probe, &has_tracepoint, offsets) {
            Decision::Attach(_) => continue,
            Decision::NoTracepoint => {
                let name = probe.tracepoints[0];
                (format!("no tracepoint {name}"), name)
            }
            Decision::NoMember => {
                let lacked = lacked(probe, missing, offsets);
                let names: Vec<String> = lacked
                    .iter()
                    .map(|(_, structure, member)| format!("{structure}.{member}"))
                    .collect();
                let found = format!("probe {} lacks {}", probe.program, names.join(", "));
                (found, lacked.first().map_or("", |(offset, ..)| *offset))
            }
        };
        let status = if probe.essential {
            Status::Missing
        } else {
            Status::Warning
        };
        let check = Check::ok("probe", found, probe.gives);
        checks.push(check.but(status, cure(lacked, running)));
    }
    if let Some((what, why)) = untold(offsets) {
        checks.push(Check::ok("files", why, what).but(Status::Warning, cure("", running)));
    }
    checks
}

/// The missing members without which a probe cannot do.
fn lacked(probe: &Probe, missing: &[Member], offsets: &Offsets) -> Vec<Member> {
    let mut fields = Vec::new();
    let full = Offsets::resolve(|_, _| Some(0), |_, _, _| {});
    Offsets::resolve(|_, _| None, |field, _, _| fields.push(field));
    let words = full.words();
    let needs = |field: &str| {
        let Some(at) = fields.iter().position(|known| *known == field) else {
            // Those that are made of several.
            return offsets.block_starts().is_none();
        };
        let mut without = words;
        without[at] = MISSING;
        let without = Offsets::from_words(&without);
        decide(probe, |_| true, &without) == Decision::NoMember
    };
    missing
        .iter()
        .copied()
        .filter(|(field, ..)| needs(field))
        .collect()
}

/// How a host gets a tracepoint, or a member by the name of its offset.
fn cure(what: &str, running: Option<KernelVersion>) -> String {
    if let Some(option) = option(what) {
        return format!("Linux {HAS_ALL} or newer, built with {option}=y");
    }
    match running {
        Some(version) if version > NEWEST_TESTED => format!(
            "a newer trainprof: this one was tested up to Linux {NEWEST_TESTED}, and later kernels may call it by another name"
        ),
        _ => format!("Linux {HAS_ALL} or newer (up to {NEWEST_TESTED} all of them have it)"),
    }
}

/// What a kernel must be built with for that.
fn option(what: &str) -> Option<&'static str> {
    let options = [
        ("task_read_bytes", "CONFIG_TASK_IO_ACCOUNTING"),
        ("task_write_bytes", "CONFIG_TASK_IO_ACCOUNTING"),
        ("kiocb_", "CONFIG_IO_URING"),
        ("io_uring_", "CONFIG_IO_URING"),
        ("call_function_single_", "CONFIG_SMP"),
        ("irq_work_", "CONFIG_IRQ_WORK"),
        ("sys_e", "CONFIG_FTRACE_SYSCALLS"),
    ];
    let found = options.iter().find(|(begin, _)| what.starts_with(begin));
    found.map(|(_, option)| *option)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Option<KernelVersion> = Some(KernelVersion {
        major: 5,
        minor: 18,
    });

    /// A kernel without the members of these structures, and without some tracepoints.
    fn kernel(structure: &str, members: &[&str]) -> (Vec<Member>, Offsets) {
        let mut missing = Vec::new();
        let offsets = Offsets::resolve(
            |s, m| (s != structure || !members.contains(&m)).then_some(8),
            |field, structure, member| missing.push((field, structure, member)),
        );
        (missing, offsets)
    }

    #[test]
    fn a_kernel_that_has_all_has_no_lack() {
        let (missing, offsets) = kernel("", &[]);
        assert_eq!(checks(&missing, &offsets, |_| true, OLD), []);
    }

    #[test]
    fn each_lack_names_the_member_and_a_kernel_that_has_it() {
        let (missing, offsets) = kernel("address_space", &["host"]);
        let found = checks(&missing, &offsets, |_| true, OLD);
        let [member, probe] = &found[..] else {
            panic!("{found:?}");
        };
        assert_eq!(member.found, "no address_space.host");
        assert_eq!(
            probe.found,
            "probe mm_filemap_add_to_page_cache lacks address_space.host"
        );
        for check in &found {
            assert_eq!(check.status, Status::Warning);
            let cure = check.cure.as_deref().unwrap_or_default();
            assert!(cure.starts_with("Linux 6.1 or newer"), "{cure}");
        }
    }

    #[test]
    fn what_is_an_option_of_the_kernel_is_told_with_it() {
        let (missing, offsets) = kernel("io_kiocb", &["file", "cqe.res"]);
        for check in checks(&missing, &offsets, |_| true, OLD) {
            let cure = check.cure.as_deref().unwrap_or_default();
            assert!(cure.ends_with("built with CONFIG_IO_URING=y"), "{cure}");
        }
        let (missing, offsets) = kernel("", &[]);
        let found = checks(&missing, &offsets, |name| name != "sys_exit", OLD);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].status, Status::Missing);
        assert_eq!(found[0].found, "no tracepoint sys_exit");
        assert!(
            found[0]
                .cure
                .as_deref()
                .is_some_and(|c| c.contains("CONFIG_FTRACE_SYSCALLS"))
        );
    }

    #[test]
    fn only_a_newer_trainprof_knows_a_newer_kernel() {
        let newer = KernelVersion { major: 7, minor: 3 };
        let (missing, offsets) = kernel("dentry", &["d_parent"]);
        let found = checks(&missing, &offsets, |_| true, Some(newer));
        assert!(found.len() > 2, "{found:?}");
        for check in found {
            let cure = check.cure.as_deref().unwrap_or_default();
            assert!(cure.starts_with("a newer trainprof"), "{cure}");
        }
    }
}
