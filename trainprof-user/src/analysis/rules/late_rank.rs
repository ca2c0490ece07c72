//! What a rank that the others wait for does more of than they do: all of them run the same program.

use super::Look;
use crate::analysis::python::{Place, Python};

/// More than this part (0–1) of the waiting must be in it.
const GOOD_PART: f64 = 0.3;

/// The function that the rank in process `late` runs for longest beyond what the others run it, and for how long (ns), where that is a good
/// part of the `waited` nanoseconds.
pub(super) fn more_of<'a>(look: &Look<'a>, late: u32, waited: f64) -> Option<(Place<'a>, f64)> {
    let python = Python::new(look.facts);
    let ran = |pid: u32| -> Vec<(Place<'a>, f64)> {
        let ns = look.session.thread(pid).map_or(0, |thread| thread.run_ns) as f64;
        let places = python.places(&[pid], None).into_iter();
        places
            .map(|place| (place.share * ns, place))
            .map(|(ns, place)| (place, ns))
            .collect()
    };
    let others: Vec<u32> = std::iter::once(look.trainer)
        .chain(&look.analysis.others)
        .filter(|trainer| !trainer.coordinates && trainer.cast.trainer != late)
        .map(|trainer| trainer.cast.trainer)
        .collect();
    let theirs: Vec<Vec<(Place, f64)>> = others.iter().map(|pid| ran(*pid)).collect();
    // Of one without samples nothing can be said.
    if theirs.is_empty() || theirs.iter().any(Vec::is_empty) {
        return None;
    }
    let same = |a: &Place, b: &Place| {
        (&a.function.file, &a.function.name, a.function.line)
            == (&b.function.file, &b.function.name, b.function.line)
    };
    let beyond = |(place, ns): (Place<'a>, f64)| {
        let all = theirs
            .iter()
            .flatten()
            .filter(|(other, _)| same(other, &place));
        let mean = all.map(|(_, ns)| ns).sum::<f64>() / theirs.len() as f64;
        (place, ns - mean)
    };
    let most = ran(late).into_iter().map(beyond);
    most.max_by(|a, b| a.1.total_cmp(&b.1))
        .filter(|(_, ns)| *ns >= GOOD_PART * waited)
}
