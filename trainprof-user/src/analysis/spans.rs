//! Sets of stretches of time.

/// Puts overlapping and touching stretches together; sorted.
pub fn union(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.retain(|(from, to)| to > from);
    spans.sort_unstable();
    let mut out: Vec<(u64, u64)> = Vec::with_capacity(spans.len());
    for (from, to) in spans {
        match out.last_mut() {
            Some(last) if from <= last.1 => last.1 = last.1.max(to),
            _ => out.push((from, to)),
        }
    }
    out
}

/// Nanoseconds of [from, to) that lie in a sorted set without overlaps.
pub fn overlap(set: &[(u64, u64)], from: u64, to: u64) -> u64 {
    let first = set.partition_point(|span| span.1 <= from);
    set[first..]
        .iter()
        .take_while(|span| span.0 < to)
        .map(|span| span.1.min(to) - span.0.max(from))
        .sum()
}

/// What of these stretches lies outside a sorted set without overlaps.
pub fn without(spans: &[(u64, u64)], set: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let mut out = Vec::with_capacity(spans.len());
    for (from, to) in spans {
        let mut at = *from;
        let first = set.partition_point(|cut| cut.1 <= at);
        for cut in set[first..].iter().take_while(|cut| cut.0 < *to) {
            if cut.0 > at {
                out.push((at, cut.0));
            }
            at = at.max(cut.1);
        }
        if at < *to {
            out.push((at, *to));
        }
    }
    out
}

/// Share (0–1) of the windows' length that lies in the set; windows may overlap.
pub fn share_inside(windows: &[(u64, u64)], set: &[(u64, u64)]) -> f64 {
    let total: u64 = windows.iter().map(|(from, to)| to - from).sum();
    if total == 0 || set.is_empty() {
        return 0.0;
    }
    let inside: u64 = windows
        .iter()
        .map(|(from, to)| overlap(set, *from, *to))
        .sum();
    inside as f64 / total as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unions_and_overlaps() {
        let set = union(vec![(10, 20), (5, 12), (30, 40), (40, 41), (50, 50)]);
        assert_eq!(set, vec![(5, 20), (30, 41)]);
        for (from, to, expected) in [(0, 5, 0), (0, 6, 1), (19, 31, 2), (0, 100, 26), (41, 60, 0)] {
            assert_eq!(overlap(&set, from, to), expected, "{from}..{to}");
        }
        assert_eq!(
            without(&[(0, 25), (31, 50), (6, 7)], &set),
            vec![(0, 5), (20, 25), (41, 50)]
        );
        assert!((share_inside(&[(0, 10), (30, 40)], &set) - 0.75).abs() < 1e-9);
        assert_eq!(share_inside(&[], &set), 0.0);
    }
}
