//! Our processes beside this one: what they cost, and what the one that has the kernel count tells.

use std::{io, time::Duration};

use super::Live;
use crate::{
    gpu,
    kernel::{AllocProbes, CallProbes, StatsSwitch},
    record::{Record, fact::StartCost},
    source::own,
};

/// CPU time of our processes beside this one since they began, nanoseconds.
pub struct HelpersNs {
    /// Of the one that opens windows, and calibrates.
    pub windows: u64,
    pub others: u64,
}

impl HelpersNs {
    pub fn all(&self) -> u64 {
        self.windows + self.others
    }
}

impl Live {
    /// Listens to this driver too, and has the kernel count through this switch. The watch begins: what all of us took until now is
    /// the start's.
    pub fn set_helpers(&mut self, driver: gpu::Driver, switch: io::Result<StatsSwitch>) {
        self.gpus.set_driver(driver);
        match switch {
            Ok(switch) => self.switch = Some(switch),
            Err(error) => self.cannot_count(&error),
        }
        let helpers = self.helpers_ns();
        let own_ns = own::usage().0 + helpers.others;
        self.allocs.begins(helpers.windows, own_ns);
        self.out.push(Record::StartCost(StartCost {
            at: own::now(),
            own_ns: own_ns + helpers.windows,
        }));
    }

    /// For how long counting waits, `most` at most, so that it sees another part of the job's step each time.
    pub fn counting_waits(&mut self, most: Duration) -> Duration {
        self.counting.up_to(most)
    }

    /// Begins a window in which the kernel counts our probes' run time. False: it does not.
    pub fn begin_counting(&mut self) -> bool {
        let Some(switch) = &mut self.switch else {
            return false;
        };
        if let Err(error) = switch.set(true) {
            self.cannot_count(&error);
            return false;
        }
        self.cost.begin_window(&self.probes);
        self.counted_again = false;
        true
    }

    /// Ends the window and records what watching costs so far.
    pub fn end_counting(&mut self) {
        let hidden = self.turns.hidden(own::now());
        let stats = self.probes.run_stats();
        if self.cost.end_window(stats, hidden, self.turns.counted()) {
            let helpers_ns = self.helpers_ns().all();
            self.out.extend(self.cost.sample(hidden, helpers_ns));
        }
        if let Some(switch) = &mut self.switch
            && let Err(error) = switch.set(false)
        {
            self.cannot_count(&error);
        }
    }

    /// Whether such a window would tell what was not known.
    pub fn has_something_to_count(&self) -> bool {
        self.counted_again
    }

    pub(super) fn helpers_ns(&mut self) -> HelpersNs {
        let switch = self.switch.as_ref().map_or(0, StatsSwitch::cpu_ns);
        let calls = self.probes.calls.as_mut().map_or(0, CallProbes::cpu_ns);
        HelpersNs {
            windows: self.probes.alloc.as_mut().map_or(0, AllocProbes::cpu_ns),
            others: switch + calls + self.gpus.cpu_ns(),
        }
    }

    /// The kernel does not count our probes' run time, and is not asked again.
    pub(super) fn cannot_count(&mut self, error: &io::Error) {
        self.switch = None;
        self.cost.counts_no_more(&self.estimate);
        self.out.push(Record::Missing {
            what: "cost".to_owned(),
            reason: why(error),
        });
    }
}

fn why(error: &io::Error) -> String {
    let told = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "the kernel tells the run time of probes only to who has CAP_SYS_ADMIN".to_owned()
        }
        _ => format!("the kernel does not tell the run time of probes ({error})"),
    };
    let cure = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            ". Run trainprof as root, or give it cap_sys_admin too (setcap(8))"
        }
        _ => "",
    };
    format!("{told}, so what they cost is estimated by how often they ran{cure}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_missing_privilege_has_a_cure() {
        let refused = why(&io::Error::from_raw_os_error(libc::EPERM));
        assert!(
            refused.contains("CAP_SYS_ADMIN") && refused.contains("setcap"),
            "{refused}"
        );
        let broken = why(&io::Error::from_raw_os_error(libc::ENOMEM));
        assert!(
            !broken.contains("CAP_SYS_ADMIN") && broken.contains("estimated"),
            "{broken}"
        );
    }
}
