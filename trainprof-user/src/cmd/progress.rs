//! What is for the eye only: a line on standard error while a watch goes on.

use std::io::{Write, stderr};

use crate::{report, session::Session};

/// Shows how the watch is going, over the line that was shown before.
pub fn show(session: &Session, processes: usize) {
    let report = report::report(session, report::Shown { top: 1 });
    let io = &report.io;
    let rate = io.opens as f64 / report.duration_s.max(1e-9);
    let mut line = format!(
        "trainprof: {:.0} s, {processes} processes, {rate:.0} opens/s",
        report.duration_s
    );
    if let Some(trainer) = &report.trainer {
        let percent = |share: f64| share * 100.0;
        line += &format!(
            ", trainer {}: {:.0} % on the CPU, {:.0} % waiting for data",
            trainer.pid,
            percent(trainer.share.on_cpu),
            percent(trainer.share.data_wait)
        );
    }
    line += " (Ctrl-C: report)";
    // Nobody is hurt when this cannot be shown.
    let _ = write!(stderr(), "\r\x1b[2K{line}");
}

/// Takes the line away.
pub fn clear() {
    let _ = write!(stderr(), "\r\x1b[2K");
}
