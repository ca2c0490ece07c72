//! Looks at how many system calls the job makes, and at what counting them costs: how many are counted, and how many timed.

use super::Live;
use crate::{env::FILE_OPERATIONS, kernel::Counted, record::Record, source::own};

/// While there are very many calls, so many like ones in a row go unlooked at for notes of single calls.
const MOST_PASSED: u64 = 16;

impl Live {
    /// Whether the job does not make very many calls.
    pub fn is_calm(&self) -> bool {
        self.entries.calm()
    }

    /// Looks how many calls the job makes, and decides whether they are counted, and their beginnings shown, until the next look.
    pub fn look_at_pace(&mut self) {
        let wanted = self.wanted_calls(false);
        self.count_calls(wanted);
        match self.turns.counted() {
            Counted::All => self.show_entries(),
            counted => self
                .entries
                .pause(own::now().0, counted == Counted::Touched),
        }
    }

    /// Which calls there is room to count. `between`: an interval ends now.
    pub(super) fn wanted_calls(&mut self, between: bool) -> Counted {
        self.turns.slows(self.allocs.slowed_by_counting());
        let some = self.some_calls.cost().is_some() && self.allocs.some_calls();
        let share = self.allocs.calls_share();
        self.turns.wanted(own::now(), share, some, between)
    }

    /// Counts these calls from now on.
    pub(super) fn count_calls(&mut self, counted: Counted) {
        if counted == self.turns.counted() {
            return;
        }
        let hides = counted != Counted::All;
        if hides {
            self.turns.set(own::now(), counted);
        }
        let done = self.probes.count_calls(counted);
        if !hides {
            self.turns.set(own::now(), counted);
            self.counted_again = true;
        }
        let Err(error) = done else { return };
        tracing::warn!(%error, ?counted, "which calls are counted could not be changed");
        self.turns.stop(own::now());
        if let Err(error) = self.probes.count_calls(Counted::All) {
            self.out.push(Record::Missing {
                what: FILE_OPERATIONS.to_owned(),
                reason: format!(
                    "calls were not counted for a while, and then they could not be watched again: {error}"
                ),
            });
        }
    }

    fn show_entries(&mut self) {
        let shown = self.entries.look(own::now().0, self.probes.pace());
        let passed = if self.entries.many() { MOST_PASSED } else { 0 };
        if let Err(error) = self.probes.set_most_passed(passed) {
            tracing::warn!(%error, passed, "how many like calls are passed over could not be changed");
        }
        if let Err(error) = self.probes.show_entries(shown) {
            tracing::warn!(%error, shown, "whether beginnings of calls are shown could not be changed");
            if shown {
                self.entries.refused();
                self.out.push(Record::Missing {
                    what: "call-latencies".to_owned(),
                    reason: format!(
                        "the job made very many calls, and then their beginnings could not be watched again: {error}"
                    ),
                });
            }
        }
    }
}
