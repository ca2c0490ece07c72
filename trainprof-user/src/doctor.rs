//! `trainprof doctor`: what this host allows, what is missing, and how to get it.
//!
//! [`DoctorFacts::read`] asks the host; [`checks()`] judges the facts and touches nothing; [`Diagnosis`] adds the checks
//! of other modules and becomes text or JSON.

pub(crate) mod bpf;
mod checks;
mod facts;
mod perf;
#[cfg(test)]
mod tests;
mod text;

use serde::{Deserialize, Serialize};

pub use bpf::BpfCall;
pub use checks::checks;
pub use facts::{DoctorFacts, nvml_library};
pub use perf::PerfCall;

use crate::env::host::HostFacts;

/// Exit status of `trainprof doctor` when jobs cannot be watched here.
pub const EXIT_NOT_SUPPORTED: i32 = 3;

/// How a check came out.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// As it should be, or of no importance here.
    Ok,
    /// Jobs can be watched, and something will not be seen.
    Warning,
    /// Without it no job can be watched.
    Missing,
}

impl Status {
    const WORDS: [&'static str; 3] = ["ok", "warning", "missing"];

    fn word(self) -> &'static str {
        match self {
            Status::Ok => Status::WORDS[0],
            Status::Warning => Status::WORDS[1],
            Status::Missing => Status::WORDS[2],
        }
    }
}

/// One thing that was looked at.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Check {
    /// A short name, stable between versions.
    pub name: String,
    /// How it came out.
    pub status: Status,
    /// What is there.
    pub found: String,
    /// What it is needed for.
    pub needed_for: String,
    /// How to get it; `None` when there is nothing to cure.
    pub cure: Option<String>,
}

impl Check {
    /// A check that came out well.
    pub fn ok(name: &str, found: impl Into<String>, needed_for: &str) -> Check {
        Check {
            name: name.to_owned(),
            status: Status::Ok,
            found: found.into(),
            needed_for: needed_for.to_owned(),
            cure: None,
        }
    }

    /// The same with another outcome and its cure.
    pub fn but(self, status: Status, cure: impl Into<String>) -> Check {
        Check {
            status,
            cure: Some(cure.into()),
            ..self
        }
    }
}

/// The checks of a host, in the order in which they are shown.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct Diagnosis {
    /// The host; `None` when it could not be read.
    pub host: Option<HostFacts>,
    /// The checks of this module.
    pub checks: Vec<Check>,
    /// The checks of others, as that of the kernel's structures.
    pub extra: Vec<Check>,
}

impl Diagnosis {
    /// Reads and judges this host.
    pub fn of_this_host(extra: Vec<Check>) -> Diagnosis {
        Diagnosis {
            host: HostFacts::read().ok(),
            checks: checks(&DoctorFacts::read()),
            extra,
        }
    }

    /// All checks.
    pub fn checks(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().chain(&self.extra)
    }

    /// Whether nothing is missing, so that `attach` would work.
    pub fn is_ready(&self) -> bool {
        self.checks().all(|check| check.status != Status::Missing)
    }

    /// 0 when [`Diagnosis::is_ready`], else [`EXIT_NOT_SUPPORTED`].
    pub fn exit_status(&self) -> i32 {
        if self.is_ready() {
            0
        } else {
            EXIT_NOT_SUPPORTED
        }
    }

    /// Text in columns, ended by a line that sums up. What is well takes a line; what is not is explained.
    pub fn to_text(&self, width: usize) -> String {
        text::render(self, width)
    }

    /// JSON with stable keys: `schema`, `ready`, `host`, `checks` (the extra ones behind the others).
    ///
    /// # Errors
    /// None that is known: all of it is plain data.
    pub fn to_json(&self) -> serde_json::Result<String> {
        #[derive(Serialize)]
        struct Document<'a> {
            schema: &'static str,
            ready: bool,
            host: &'a Option<HostFacts>,
            checks: Vec<&'a Check>,
        }
        serde_json::to_string_pretty(&Document {
            schema: "trainprof.doctor/1",
            ready: self.is_ready(),
            host: &self.host,
            checks: self.checks().collect(),
        })
    }
}
