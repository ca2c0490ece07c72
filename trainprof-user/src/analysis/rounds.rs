//! Calls that come evenly several times in a step, told by where the model computes: once in each.
//!
//! A step that makes its batch by six expressions of one size maps memory six times, at even intervals. Nothing in the calls tells that
//! from six steps; stacks do, where those in the model's code lie behind one of six calls only.

/// Calls in a step at most.
const MOST: usize = 32;
/// So many of the stretches with the model's code (0–1) lie a whole number of steps apart, and that they would by chance is no likelier than
/// this.
const IN_TURN: f64 = 0.9;
const BY_CHANCE: f64 = 1e-6;

/// One call of each step, when stacks show that steps have several; else all of them. `times`: of the calls; `model`: when stacks in the
/// model's code were seen. Both sorted.
pub fn one_each(times: Vec<u64>, model: &[u64]) -> Vec<u64> {
    let mut behind: Vec<usize> = model
        .iter()
        .map(|at| times.partition_point(|call| call <= at))
        .filter(|call| (1..times.len()).contains(call))
        .collect();
    behind.dedup();
    let apart: Vec<usize> = behind.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let in_turn = |calls: &usize| {
        let whole = apart.iter().filter(|apart| *apart % calls == 0).count();
        whole as f64 >= IN_TURN * apart.len() as f64
            && by_chance(apart.len(), whole, 1.0 / *calls as f64) <= BY_CHANCE
    };
    let Some(calls) = (2..=MOST).rev().find(in_turn) else {
        return times;
    };
    let mut places = vec![0_usize; calls];
    for call in behind {
        places[call % calls] += 1;
    }
    // The call after the model's is the first of the next step.
    let first = (0..calls).max_by_key(|place| places[*place]).unwrap_or(0);
    times.into_iter().skip(first).step_by(calls).collect()
}

/// How likely `hits` or more of `n` are such by chance, each being so with probability `p`: no less than that (union bound).
fn by_chance(n: usize, hits: usize, p: f64) -> f64 {
    let ways = (0..n - hits).fold(1.0, |ways, at| ways * (n - at) as f64 / (at + 1) as f64);
    ways * p.powi(hits as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// 600 calls, 28 ms apart, and stacks in the model's code after each so many-th of them, of which every third one was seen.
    fn job(every: u64) -> (Vec<u64>, Vec<u64>) {
        let calls: Vec<u64> = (0..600).map(|n| n * 28 * MS).collect();
        let model = (0..600 / every)
            .filter(|step| step * 7 % 11 % 3 == 0)
            .map(|step| (step * every + every - 1) * 28 * MS + (step % 5 + 1) * MS)
            .collect();
        (calls, model)
    }

    #[test]
    fn calls_are_as_many_in_each_step_as_between_two_times_of_the_model() {
        let (calls, model) = job(6);
        let steps = one_each(calls, &model);
        assert_eq!(steps.len(), 100);
        assert_eq!(steps[1] - steps[0], 6 * 28 * MS);
        // Each begins when the model is done.
        assert!(steps.iter().all(|at| at % (6 * 28 * MS) == 0));
    }

    #[test]
    fn where_the_model_is_behind_any_call_each_is_a_step() {
        let (calls, model) = job(1);
        assert_eq!(one_each(calls, &model).len(), 600);
    }

    #[test]
    fn a_few_stacks_tell_nothing() {
        let (calls, model) = job(6);
        assert_eq!(one_each(calls.clone(), &model[..7]).len(), 600);
        assert_eq!(one_each(calls, &[]).len(), 600);
    }
}
