//! The report: a pure function of a session. JSON by a stable contract, and text that can be read in ten
//! seconds.

mod alloc;
mod build;
#[cfg(test)]
mod cost_tests;
mod directories;
pub mod gate;
mod gpu;
mod io;
mod latency;
mod memory;
pub mod model;
mod text;
mod threads;
mod why;

pub use build::report;
pub use model::Report;
pub use text::to_text;

/// How much a report shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Rows of each table.
    pub top: usize,
}

impl Default for Shown {
    fn default() -> Self {
        Self { top: 20 }
    }
}

/// The report as JSON, with a line feed at its end.
pub fn to_json(report: &Report) -> String {
    let mut json = serde_json::to_string_pretty(report)
        .unwrap_or_else(|error| format!("{{\"error\": \"{error}\"}}"));
    json.push('\n');
    json
}
