//! `trainprof doctor`.

mod lacks;

use std::path::Path;

use super::{
    Failure,
    cli::DoctorArgs,
    output::{columns, print},
};
use crate::{
    doctor::{Check, Diagnosis},
    env::host::KernelVersion,
    kernel::{
        btf::{KernelTypes, VMLINUX},
        plan::{CATALOGUE, tracepoints},
    },
};

/// Prints what this host allows.
pub fn doctor(args: &DoctorArgs) -> Result<u8, Failure> {
    let diagnosis = Diagnosis::of_this_host(probe_checks());
    let text = if args.json {
        diagnosis.to_json().map_err(Failure::host)?
    } else {
        diagnosis.to_text(columns())
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
    let mut checks = lacks::checks(
        &types.missing,
        &types.offsets,
        |name| types.has_tracepoint(name),
        KernelVersion::running(),
    );
    if checks.is_empty() {
        let found = format!("all {} can attach", CATALOGUE.len());
        checks.push(Check::ok("probes", found, "everything in the report"));
    }
    checks
}
