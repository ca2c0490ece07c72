//! `trainprof doctor`.

use std::path::Path;

use super::{Failure, cli::DoctorArgs, output::print};
use crate::{
    doctor::{Check, Diagnosis, Status},
    kernel::{
        btf::{KernelTypes, VMLINUX},
        plan::{CATALOGUE, Decision, decide, tracepoints, untold},
    },
};

/// Columns of the text.
const WIDTH: usize = 100;

/// Prints what this host allows.
pub fn doctor(args: &DoctorArgs) -> Result<u8, Failure> {
    let diagnosis = Diagnosis::of_this_host(probe_checks());
    let text = if args.json {
        diagnosis.to_json().map_err(Failure::host)?
    } else {
        diagnosis.to_text(WIDTH)
    };
    print(&text)?;
    Ok(diagnosis.exit_status() as u8)
}

/// One check for each probe or kernel member that this kernel does not offer, or one that all are there.
fn probe_checks() -> Vec<Check> {
    let Ok(types) = KernelTypes::read(Path::new(VMLINUX), &tracepoints()) else {
        // That there is no BTF is a check of its own.
        return Vec::new();
    };
    let mut checks = Vec::new();
    for (offset, structure, member) in &types.missing {
        let check = Check::ok(
            "kernel member",
            format!("no {structure}.{member}"),
            &format!("what reads {offset}"),
        );
        checks.push(check.incurably(Status::Warning));
    }
    for probe in CATALOGUE {
        let found = match decide(probe, |name| types.has_tracepoint(name), &types.offsets) {
            Decision::Attach(_) => continue,
            Decision::NoTracepoint => format!("no tracepoint {}", probe.tracepoints[0]),
            Decision::NoMember => format!("probe {} lacks a structure member", probe.program),
        };
        let status = if probe.essential {
            Status::Missing
        } else {
            Status::Warning
        };
        checks.push(Check::ok("probe", found, probe.gives).incurably(status));
    }
    if let Some((what, why)) = untold(&types.offsets) {
        checks.push(Check::ok("files", why, what).incurably(Status::Warning));
    }
    if checks.is_empty() {
        let found = format!("all {} can attach", CATALOGUE.len());
        checks.push(Check::ok("probes", found, "everything in the report"));
    }
    checks
}
