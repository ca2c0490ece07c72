//! What hides a latency: more that is on its way at a time.

use super::{Look, input_cpu::wanted_workers};
use crate::analysis::Kind;

/// More than this at a time is no advice: the far end, or what is between, has a limit of its own.
const MOST: f64 = 256.0;

/// How many producers now have something on their way, and about how many would keep up with the trainer; `None` where there are
/// none, or enough.
pub(super) fn in_flight(look: &Look) -> Option<(usize, f64)> {
    let now = look.trainer.cast.parallel();
    let wanted = wanted_workers(look)?.ceil();
    (now > 0 && wanted > now as f64 && wanted <= MOST).then_some((now, wanted))
}

/// Bytes a second that the trainer would take in if it did not wait for a cause, of what it takes in now.
pub(super) fn wanted_rate(look: &Look, kind: Kind, rate: f64) -> f64 {
    let wall = look.trainer.wall;
    let waited = look.wall_share(kind) * wall;
    rate * wall / (wall - waited).max(0.01 * wall)
}

/// How many would keep up with a trainer that waits for a cause itself, if what they wait for serves as many at a time: each takes as long
/// for a batch as the trainer waits now, and may do so while that one does the rest of a step.
pub(super) fn ahead(look: &Look, kind: Kind) -> u64 {
    let share = look.wall_share(kind);
    let rest = (1.0 - share).max(1.0 / MOST);
    (share / rest).ceil().clamp(1.0, MOST) as u64
}
