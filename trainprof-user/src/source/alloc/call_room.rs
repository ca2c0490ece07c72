//! For which part of the time the budget has room to count all system calls, and whether some are counted in the rest of it. Pure.

/// Counting calls that costs less than this part of the budget is never given up.
const CALLS_MATTER: f64 = 0.2;
/// However little room there is, calls are counted for this part of the budget; but not less of the time than the rarest, nor need it be
/// more than the rare share.
const CALLS_AT_LEAST: f64 = 0.05;
const RAREST_CALLS: f64 = 1.0 / 40.0;
const RARE_CALLS: f64 = 0.15;
/// Who has room for so much of the time may have all of it.
const NEARLY_ALL: f64 = 0.85;
/// Counting some calls may take so many times the budget: steps are found by them. Else none are counted, where counting all takes so
/// many times the budget: what a trainer does is hardly understood without its calls.
const SOME_AT_MOST: f64 = 2.0;
const NONE_FROM: f64 = 4.0;

/// What calls and all else cost, nanoseconds a second.
pub struct CallCosts {
    /// What all of the watch may take, and what it takes without calls.
    pub budget: f64,
    pub rest: f64,
    /// Of it, what goes into paying back what was taken too much.
    pub repaid: f64,
    /// What calls take while all are counted, and while some are; `None`: nearly as much.
    pub all: f64,
    pub some: Option<f64>,
}

/// What there is room for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CallRoom {
    /// Part (0–1) of the time in which all calls are counted.
    pub share: f64,
    /// In the rest of it some are.
    pub some: bool,
}

impl CallRoom {
    pub const ALL: Self = Self {
        share: 1.0,
        some: true,
    };

    pub fn of(costs: &CallCosts) -> Self {
        let CallCosts { budget, all, .. } = *costs;
        if all < CALLS_MATTER * budget {
            return Self::ALL;
        }
        let some = costs.some.filter(|some| *some < SOME_AT_MOST * budget);
        if some.is_none() && all < NONE_FROM * budget {
            return Self {
                share: 1.0,
                some: false,
            };
        }
        let hidden = some.unwrap_or(0.0);
        let room = budget - costs.repaid - costs.rest;
        let least = (CALLS_AT_LEAST * budget / all).clamp(RAREST_CALLS, RARE_CALLS);
        let share = ((room - hidden) / (all - hidden)).max(least);
        Self {
            share: if share > NEARLY_ALL { 1.0 } else { share },
            some: some.is_some(),
        }
    }
}
