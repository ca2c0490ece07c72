//! What is for the eye only: on standard error, while a watch goes on.

use std::io::{Write, stderr};

use crate::{
    analysis::{Verdict, analyse},
    session::Session,
};

/// When the first verdict is tried, seconds after the beginning. Each next one comes after twice the time: what it
/// is made from grows as long, so the work stays a small part of the watch.
const FIRST_S: f64 = 5.0;

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
        let so_far = self.verdict.as_ref().map_or_else(String::new, |verdict| {
            format!(
                ", {} (confidence {:.0} %)",
                verdict.bottleneck,
                verdict.confidence * 100.0
            )
        });
        // Nobody is hurt when this cannot be shown.
        let _ = write!(
            stderr(),
            "\r\x1b[2Ktrainprof: {seconds:.0} s, {processes} processes{so_far} (Ctrl-C: report)"
        );
    }

    /// Takes the line away.
    pub fn clear(&self) {
        let _ = write!(stderr(), "\r\x1b[2K");
    }
}
