//! Loading programs for uprobes, and attaching them: what all processes that do so have in common.

pub(super) mod links;
pub(super) mod multi;
mod relocated;

use std::{
    io,
    os::fd::{AsFd, AsRawFd, RawFd},
    path::Path,
};

use aya::{
    Ebpf,
    programs::{
        ProgramError, UProbe,
        uprobe::{UProbeAttachPoint, UProbeLink, UProbeScope},
    },
};

/// Loads a program; gives its descriptor, or in words why not.
pub(super) fn load(ebpf: &mut Ebpf, name: &'static str) -> Result<RawFd, String> {
    let program: &mut UProbe = ebpf
        .program_mut(name)
        .and_then(|p| p.try_into().ok())
        .ok_or_else(|| format!("the eBPF object has no program {name}"))?;
    program.load().map_err(|error| {
        let text = error.to_string();
        tracing::debug!(program = name, %text, "refused");
        brief(&text)
    })?;
    let fd = program.fd().map_err(|error| error.to_string())?;
    Ok(fd.as_fd().as_raw_fd())
}

/// What the kernel says of a program that it refuses: the verifier's log is as long as the program, and the reason is its last line but for
/// what it counts.
fn brief(text: &str) -> String {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default().to_owned();
    let counts = |line: &&str| {
        ["processed ", "verification time ", "stack depth "]
            .iter()
            .any(|begin| line.starts_with(begin))
    };
    match lines.rfind(|line| !counts(line)) {
        Some(last) => format!("{first} … {last}"),
        None => first,
    }
}

/// Attaches a loaded program at an offset of a file. Gives in words what went wrong, and whether we lack the
/// permission.
pub(super) fn attach(
    ebpf: &mut Ebpf,
    program: &'static str,
    offset: u64,
    cookie: u64,
    path: &Path,
    scope: UProbeScope,
) -> Result<UProbeLink, (String, bool)> {
    let program: &mut UProbe = ebpf
        .program_mut(program)
        .and_then(|p| p.try_into().ok())
        .ok_or_else(|| ("no such program".to_owned(), false))?;
    let point = UProbeAttachPoint {
        location: offset.into(),
        cookie: Some(cookie),
    };
    let id = program.attach(point, path, scope).map_err(in_words)?;
    program.take_link(id).map_err(in_words)
}

/// An error with all that it is caused by, and whether that is a lack of permission.
fn in_words(error: ProgramError) -> (String, bool) {
    let denied = matches!(&error, ProgramError::SyscallError(call)
        if call.io_error.kind() == io::ErrorKind::PermissionDenied);
    (chain(&error), denied)
}

/// An error with all that it is caused by.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::brief;

    #[test]
    fn a_refusal_is_told_by_its_first_line_and_its_reason() {
        let told = brief(
            "Invalid argument. Verifier output: func#0 @0\n0: (bf) r1\nR1 invalid mem access\nprocessed 3 insns\nstack depth 104+8\n",
        );
        assert_eq!(
            told,
            "Invalid argument. Verifier output: func#0 @0 … R1 invalid mem access"
        );
        assert_eq!(brief("Operation not permitted"), "Operation not permitted");
        assert_eq!(brief(""), "");
    }
}
