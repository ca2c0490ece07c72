//! Which functions a window probes, and what their probes are told.

use trainprof_common::alloc::Site;

use super::{
    WindowOrder,
    attached::Spot,
    functions::{CATALOGUE, ESSENTIAL},
    library::Place,
};

/// Where only one function may be probed, one window in so many is of another one than `malloc`.
const ANOTHER_EVERY: u32 = 3;

/// The places that a window probes: `malloc` and of the others as many as there may be, in turn; where lifetimes are
/// followed `malloc` and `free`.
pub fn wanted(places: &[Place], order: &WindowOrder) -> Vec<Place> {
    let name = |place: &&Place| CATALOGUE[place.row].name;
    if order.paired {
        return places
            .iter()
            .filter(|place| ["malloc", "free"].contains(&name(place)))
            .copied()
            .collect();
    }
    let (mut out, mut others): (Vec<Place>, Vec<Place>) = places
        .iter()
        .filter(|place| CATALOGUE[place.row].allocates())
        .partition(|place| name(place) == ESSENTIAL);
    if !others.is_empty() {
        let mut turn = order.number;
        if order.max_sites <= 1 {
            turn /= ANOTHER_EVERY;
            if order.number.is_multiple_of(ANOTHER_EVERY) {
                out.clear();
            }
        }
        let turn = turn as usize % others.len();
        others.rotate_left(turn);
    }
    others.truncate((order.max_sites.max(1) as usize).saturating_sub(out.len()));
    out.extend(others);
    out
}

/// Where a place is probed, and what the probe is told there.
pub fn spot(place: &Place, paired: bool) -> Spot {
    let row = &CATALOGUE[place.row];
    let flag = |on, bit| if on { bit } else { 0 };
    let site = Site {
        function: place.row as u8,
        size: row.size,
        times: row.times,
        result: row.result,
        flags: flag(place.steps, Site::STEPS)
            | flag(place.not_null, Site::NOT_NULL)
            | flag(row.frees, Site::FREES),
    };
    Spot {
        offset: place.offset,
        cookie: site.pack(),
        returns: paired && row.allocates(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_has_its_turn() {
        let places: Vec<Place> = (0..CATALOGUE.len())
            .filter(|row| CATALOGUE[*row].allocates())
            .map(|row| Place {
                row,
                offset: 0,
                steps: false,
                not_null: false,
            })
            .collect();
        for max_sites in [1, 2, 4] {
            let order = |number| WindowOrder {
                number,
                pid: 1,
                delay_us: 0,
                length_us: 1,
                max_calls: 1,
                stack_every: 0,
                paired: false,
                max_sites,
            };
            let windows: Vec<Vec<Place>> = (1..=60)
                .map(|number| wanted(&places, &order(number)))
                .collect();
            assert!(windows.iter().all(|seen| seen.len() == max_sites as usize));
            let times = |place: &Place| windows.iter().flatten().filter(|p| *p == place).count();
            for place in &places {
                let name = CATALOGUE[place.row].name;
                let least = if name == ESSENTIAL { 40 } else { 1 };
                assert!(
                    times(place) >= least,
                    "{name} of {max_sites}: {}",
                    times(place)
                );
            }
        }
    }
}
