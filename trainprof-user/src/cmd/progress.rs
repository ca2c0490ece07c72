//! What is for the eye only: on standard error, while a watch goes on.

use std::io::{Write, stderr};

use terminal_size::terminal_size_of;

use crate::{
    analysis::{Verdict, analyse},
    session::Session,
};

/// When the first verdict is tried, seconds after the beginning. Each next one comes after twice the time: what it
/// is made from grows as long, so the work stays a small part of the watch.
const FIRST_S: f64 = 5.0;

/// Width of a terminal that does not tell its own.
const COLUMNS: usize = 80;

/// The live view of one watch.
pub struct Progress {
    next_s: f64,
    /// The verdict so far.
    verdict: Option<Verdict>,
}

impl Default for Progress {
    fn default() -> Self {
        Self {
            next_s: FIRST_S,
            verdict: None,
        }
    }
}

impl Progress {
    /// Shows how the watch is going, over the line that was shown before; above it the verdict so far, each time
    /// that it is another one.
    pub fn show(&mut self, session: &Session, processes: usize) {
        let seconds = session.duration_s();
        if seconds >= self.next_s {
            self.next_s = seconds * 2.0;
            let verdict = analyse(session).verdict;
            let known = self.verdict.as_ref().map(|verdict| verdict.bottleneck);
            if let Some(verdict) = &verdict
                && known != Some(verdict.bottleneck)
            {
                let text = &verdict.summary;
                let _ = writeln!(stderr(), "\r\x1b[2Kafter {seconds:.0} s → {text}");
            }
            self.verdict = verdict;
        }
        let columns = terminal_size_of(stderr()).map_or(COLUMNS, |(width, _)| width.0.into());
        let line = line(seconds, processes, self.verdict.as_ref(), columns);
        // Nobody is hurt when this cannot be shown.
        let _ = write!(stderr(), "\r\x1b[2K{line}");
    }

    /// Takes the line away.
    pub fn clear(&self) {
        let _ = write!(stderr(), "\r\x1b[2K");
    }
}

/// How the watch is going, in one row of a terminal with so many columns: a longer line could not be taken away again.
fn line(seconds: f64, processes: usize, verdict: Option<&Verdict>, columns: usize) -> String {
    let plural = if processes == 1 { "" } else { "es" };
    let mut line = format!("trainprof: {seconds:.0} s, {processes} process{plural}");
    let verdict = verdict.map(|verdict| {
        let percent = verdict.confidence * 100.0;
        format!(", {} (confidence {percent:.0} %)", verdict.bottleneck)
    });
    // The last column stays free: what is written there may already turn the line.
    let room = columns.saturating_sub(1);
    for part in verdict
        .iter()
        .map(String::as_str)
        .chain([" (Ctrl-C: report)"])
    {
        if line.chars().count() + part.chars().count() <= room {
            line.push_str(part);
        }
    }
    line.chars().take(room).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_never_turns() {
        let verdict = Verdict {
            bottleneck: "allocation-churn",
            share: Some(0.5),
            share_of: "trainer-wall-time",
            speedup_bound: Some(2.0),
            summary: String::new(),
            confidence: 0.8,
        };
        let at = |columns| line(12.0, 1, Some(&verdict), columns);
        let all = "trainprof: 12 s, 1 process, allocation-churn (confidence 80 %) (Ctrl-C: report)";
        assert_eq!(at(200), all);
        assert_eq!(at(all.len() + 1), all);
        assert_eq!(
            at(all.len()),
            "trainprof: 12 s, 1 process, allocation-churn (confidence 80 %)"
        );
        assert_eq!(at(50), "trainprof: 12 s, 1 process (Ctrl-C: report)");
        for columns in 0..100 {
            assert!(at(columns).len() < columns.max(1), "{columns}");
        }
        let begun = "trainprof: 3 s, 4 processes (Ctrl-C: report)";
        assert_eq!(line(3.0, 4, None, 80), begun);
    }
}
