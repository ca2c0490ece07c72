//! Which functions a window probes, and what their probes are told.

use std::collections::BTreeMap;

use trainprof_common::alloc::Site;

use super::{
    functions::{CATALOGUE, ESSENTIAL, Row},
    library::Place,
};
use crate::kernel::uprobe::links::Spot;

/// Where only one function may be probed, one window in so many is of another one than `malloc`.
const ANOTHER_EVERY: u32 = 3;

/// A function that asked for less than this share of a process's bytes need not be followed.
const LITTLE: f64 = 0.01;

/// Bytes that functions of a process asked for in windows, by their rows.
pub type Asked = BTreeMap<u8, u64>;

/// The places that a window probes: `malloc` and of the others as many as there may be, in turn. `turn`: how many such windows the process
/// had before. The window's number would not do: every third window is of another kind, and every second one may be of another process, so that
/// some functions would never have their turn.
pub fn wanted(places: &[Place], max_sites: u32, turn: u32) -> Vec<Place> {
    let name = |place: &&Place| CATALOGUE[place.row].name;
    let (mut out, mut others): (Vec<Place>, Vec<Place>) = places
        .iter()
        .filter(|place| CATALOGUE[place.row].allocates())
        .partition(|place| name(place) == ESSENTIAL);
    if !others.is_empty() {
        let mut turn = turn;
        if max_sites <= 1 {
            if turn % ANOTHER_EVERY == ANOTHER_EVERY - 1 {
                out.clear();
            }
            turn /= ANOTHER_EVERY;
        }
        let turn = turn as usize % others.len();
        others.rotate_left(turn);
    }
    others.truncate((max_sites.max(1) as usize).saturating_sub(out.len()));
    out.extend(others);
    out
}

/// The places that are probed where memory is followed from its allocation to its release: `malloc` and `free`. Where probes
/// go all at once (`at_once`) they may be more: whatever asked for a part of the process's bytes, all in the same windows, so
/// that each counts for as much as it asks for.
pub fn followed(places: &[Place], asked: &Asked, at_once: bool) -> Vec<Place> {
    let all: u64 = asked.values().sum();
    let much = |row: usize| {
        let bytes = asked.get(&(row as u8)).copied().unwrap_or(0);
        bytes > 0 && bytes as f64 >= LITTLE * all as f64
    };
    let makes = |place: &Place| {
        let row = &CATALOGUE[place.row];
        row.name == ESSENTIAL || at_once && row.is_followed() && much(place.row)
    };
    let any = |of: fn(&Row) -> bool| {
        let mut places = places.iter();
        places.any(|place| makes(place) && of(&CATALOGUE[place.row]))
    };
    let (by_operator, by_jemalloc) = (any(Row::is_operator), any(Row::is_jemallocs));
    let gives_back = |place: &Place| {
        let row = &CATALOGUE[place.row];
        let as_made = by_operator && row.is_operator() || by_jemalloc && row.is_jemallocs();
        row.frees && !row.allocates() && (row.name == "free" || as_made)
    };
    places
        .iter()
        .filter(|place| makes(place) || gives_back(place))
        .copied()
        .collect()
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
        returns: paired && row.is_followed(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(which: impl Fn(&str) -> bool) -> Vec<Place> {
        (0..CATALOGUE.len())
            .filter(|row| which(CATALOGUE[*row].name))
            .map(|row| Place {
                row,
                offset: 0,
                steps: false,
                not_null: false,
            })
            .collect()
    }

    fn row(name: &str) -> u8 {
        let at = CATALOGUE.iter().position(|row| row.name == name);
        at.expect("a row") as u8
    }

    #[test]
    fn what_asks_for_much_is_followed() {
        let names = |asked: &[(&str, u64)], at_once: bool| -> Vec<&'static str> {
            let asked: Asked = asked.iter().map(|(name, n)| (row(name), *n)).collect();
            followed(&places(|_| true), &asked, at_once)
                .iter()
                .map(|place| CATALOGUE[place.row].name)
                .collect()
        };
        let tensors = [("malloc", 500), ("posix_memalign", 9_500), ("calloc", 50)];
        assert_eq!(names(&[], true), ["malloc", "free"]);
        assert_eq!(names(&tensors, true), ["malloc", "free", "posix_memalign"]);
        // Each probe may be a pause of its own.
        assert_eq!(names(&tensors, false), ["malloc", "free"]);
        // What nobody could follow is not probed, nor what gives it back.
        assert_eq!(names(&[("_Znwm", 1_000)], true), ["malloc", "free"]);
        let operators = names(&[("_ZnwmRKSt9nothrow_t", 1_000)], true);
        assert_eq!(operators[..3], ["malloc", "free", "_ZnwmRKSt9nothrow_t"]);
        assert!(operators[3..].iter().all(|name| name.starts_with("_Zd")));
        assert!(operators.contains(&"_ZdlPvm"), "{operators:?}");
        let own = ["malloc", "free", "mallocx", "dallocx", "sdallocx"];
        assert_eq!(names(&[("mallocx", 1_000)], true), own);
    }

    #[test]
    fn the_return_of_what_may_throw_is_never_probed() {
        for place in places(|_| true) {
            let row = &CATALOGUE[place.row];
            let returns = spot(&place, true).returns;
            assert_eq!(returns, row.allocates() && !row.throws, "{}", row.name);
            assert!(!spot(&place, false).returns);
        }
    }

    #[test]
    fn every_function_has_its_turn() {
        let places = places(|name| CATALOGUE[usize::from(row(name))].allocates());
        for max_sites in [1, 2, 4] {
            let windows: Vec<Vec<Place>> = (0..60)
                .map(|turn| wanted(&places, max_sites, turn))
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
