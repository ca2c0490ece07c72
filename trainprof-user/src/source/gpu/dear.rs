//! Which functions of the GPU's runtime are called too often to be watched: pure.

use trainprof_common::gpu::CallKind;

/// What the probes of a call take of the thread that makes it, nanoseconds: at its entry and its return, with what they send. Measured
/// on a job that calls 60 000 times a second (Linux 6.18, H200): 1.7 µs a call. Where the kernel has to single-step, some 10.
const EMULATED_NS: f64 = 1_700.0;
const STEPPED_NS: f64 = 10_000.0;
/// What one for memory takes beyond that, half of them by code of Python a dozen calls deep: 2.6 µs for an allocation with its return
/// (Linux 6.18, AMD EPYC).
const MEMORY_NS: f64 = 1_300.0;
/// What all of them together may take, nanoseconds a second for each process that makes calls: a hundredth of one thread.
const MOST_NS: f64 = 10_000_000.0;
/// So many times as much is let go at once, without waiting whether it goes on.
const MUCH: f64 = 5.0;
/// The driver takes tens of microseconds for memory: who asks for it that often is held up by it, and is told so as long as watching it
/// takes no more than so many times as much.
const FOR_MEMORY: f64 = 2.0;
/// Who takes less than this part of that is not let go: it would not help.
const LITTLE: f64 = 0.05;
/// The driver's functions are made inside the runtime's when these are called so many times for each of their calls.
const INSIDE: f64 = 0.5;

/// No loop has more steps a second that are worth telling: each operation is then computed by itself. They are let go before all else.
const MOST_EXECUTIONS: f64 = 1_000.0;

/// How often a function is called.
#[derive(Clone, Copy, Debug)]
pub struct Rate {
    pub kind: CallKind,
    /// One of `libcuda`, which the runtime's own functions call.
    pub driver: bool,
    pub steps: bool,
    /// Calls a second.
    pub calls: f64,
}

impl Rate {
    fn ns(&self) -> f64 {
        let probes = if self.steps { STEPPED_NS } else { EMULATED_NS };
        let is_memorys = matches!(self.kind, CallKind::Allocate | CallKind::Free);
        self.calls * (probes + if is_memorys { MEMORY_NS } else { 0.0 })
    }
}

/// Which of these are let go, by their places: what tells least first. `processes` make calls.
pub fn let_go(rates: &[Rate], processes: usize) -> Vec<usize> {
    let most = MOST_NS * processes.max(1) as f64;
    let mut sum: f64 = rates.iter().map(Rate::ns).sum();
    let mut order: Vec<usize> = (0..rates.len())
        .filter(|at| rates[*at].ns() > LITTLE * most)
        .collect();
    order.sort_by(|a, b| {
        let (a, b) = (&rates[*a], &rates[*b]);
        worth(a, rates)
            .cmp(&worth(b, rates))
            .then(b.ns().total_cmp(&a.ns()))
    });
    let mut out: Vec<usize> = (0..rates.len())
        .filter(|at| rates[*at].kind == CallKind::Execute && rates[*at].calls > MOST_EXECUTIONS)
        .collect();
    sum -= out.iter().map(|at| rates[*at].ns()).sum::<f64>();
    order.retain(|at| !out.contains(at));
    for at in order {
        let worth_more = matches!(rates[at].kind, CallKind::Allocate | CallKind::Free)
            && !is_inside(&rates[at], rates);
        if sum <= most * if worth_more { FOR_MEMORY } else { 1.0 } {
            break;
        }
        sum -= rates[at].ns();
        out.push(at);
    }
    out
}

/// Whether they take so much that it is not waited whether that goes on.
pub fn far_too_many(rates: &[Rate], processes: usize) -> bool {
    rates.iter().map(Rate::ns).sum::<f64>() > MUCH * MOST_NS * processes.max(1) as f64
}

/// Whether a function's calls are those that the runtime makes inside its own: they tell nothing that these do not.
pub fn is_inside(rate: &Rate, rates: &[Rate]) -> bool {
    let outside: f64 = rates
        .iter()
        .filter(|other| !other.driver && other.kind == rate.kind)
        .map(|other| other.calls)
        .sum();
    rate.driver && outside >= INSIDE * rate.calls
}

/// How much a function's calls tell.
fn worth(rate: &Rate, rates: &[Rate]) -> u8 {
    if is_inside(rate, rates) {
        return 0;
    }
    match rate.kind {
        // Mostly something else than what it is watched for.
        CallKind::Scope | CallKind::Operator => 0,
        // Only begins something.
        CallKind::CopyAsync => 1,
        // May be over at once, where there is nothing to wait for.
        CallKind::Copy | CallKind::Synchronise => 2,
        // Takes the driver long: who calls that often is held up by it.
        CallKind::Allocate | CallKind::Free => 3,
        // Tells the steps.
        CallKind::Backward | CallKind::Execute => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(kind: CallKind, driver: bool, calls: f64) -> Rate {
        Rate {
            kind,
            driver,
            steps: false,
            calls,
        }
    }

    #[test]
    fn stretches_with_names_go_before_anything_else() {
        let rates = [
            rate(CallKind::CopyAsync, false, 4_000.0),
            rate(CallKind::Scope, false, 3_000.0),
            rate(CallKind::Backward, false, 20.0),
        ];
        assert_eq!(let_go(&rates, 1), [1]);
    }

    #[test]
    fn operations_that_are_computed_one_by_one_take_nothing_else_with_them() {
        let rates = [
            rate(CallKind::Synchronise, false, 1_000.0),
            rate(CallKind::CopyAsync, false, 2_000.0),
            rate(CallKind::Execute, false, 10_000.0),
        ];
        assert_eq!(let_go(&rates, 1), [2]);
        // Also where they cost little; steps stay.
        assert_eq!(let_go(&[rate(CallKind::Execute, false, 1_500.0)], 1), [0]);
        assert!(let_go(&[rate(CallKind::Execute, false, 300.0)], 1).is_empty());
    }

    #[test]
    fn a_few_hundred_calls_are_all_watched() {
        let rates = [
            rate(CallKind::Synchronise, false, 400.0),
            rate(CallKind::Synchronise, true, 400.0),
            rate(CallKind::CopyAsync, false, 800.0),
        ];
        assert!(let_go(&rates, 1).is_empty());
    }

    #[test]
    fn what_tells_nothing_new_goes_first() {
        // 27 ms a second, of which 10 may be.
        let rates = [
            rate(CallKind::Synchronise, false, 4_000.0),
            rate(CallKind::Synchronise, true, 4_000.0),
            rate(CallKind::CopyAsync, false, 4_000.0),
            rate(CallKind::CopyAsync, true, 4_000.0),
        ];
        assert_eq!(let_go(&rates, 1), [1, 3, 2]);
        assert!(!far_too_many(&rates, 1));
        // Two processes make them.
        assert_eq!(let_go(&rates, 2), [1, 3]);
    }

    #[test]
    fn who_calls_the_driver_itself_is_watched_there() {
        let rates = [
            rate(CallKind::CopyAsync, true, 5_000.0),
            rate(CallKind::Synchronise, true, 4_000.0),
            rate(CallKind::Allocate, false, 10.0),
        ];
        assert_eq!(let_go(&rates, 1), [0]);
    }

    #[test]
    fn memory_of_the_gpu_is_watched_longest() {
        let calls = |each: f64| {
            [
                rate(CallKind::Allocate, false, each),
                rate(CallKind::Free, false, each),
                rate(CallKind::Allocate, true, each),
                rate(CallKind::Synchronise, false, 100.0),
            ]
        };
        assert_eq!(let_go(&calls(3_000.0), 1), [2]);
        assert_eq!(let_go(&calls(6_000.0), 1), [2, 0]);
    }

    #[test]
    fn twenty_thousand_waits_a_second_are_too_many() {
        let rates = [
            rate(CallKind::Synchronise, false, 20_000.0),
            rate(CallKind::Synchronise, true, 20_000.0),
            rate(CallKind::CopyAsync, false, 20_000.0),
            rate(CallKind::Free, false, 1.0),
        ];
        assert_eq!(let_go(&rates, 1), [1, 2, 0]);
        assert!(far_too_many(&rates, 1));
        // What is single-stepped is dear sooner.
        let stepped = Rate {
            steps: true,
            ..rate(CallKind::Synchronise, false, 1_200.0)
        };
        assert_eq!(let_go(&[stepped], 1), [0]);
    }
}
