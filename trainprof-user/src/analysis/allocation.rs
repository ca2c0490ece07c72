//! Where memory is asked for, by sampled calls of windows.

use std::collections::BTreeMap;

use crate::{
    record::fact::AllocFrame,
    session::{
        Session,
        alloc::{Estimate, SiteSum},
        shares::drawn,
    },
};

/// A function that asks for memory, and what it calls for that.
#[derive(Clone, Debug)]
pub struct Caller {
    pub pid: u32,
    /// What it calls: `malloc`, `operator new`.
    pub allocator: String,
    /// Path of its module, and its name; `None`: nothing tells.
    pub module: Option<String>,
    pub function: Option<String>,
    pub sampled: SiteSum,
    /// The commonest way there, the caller first.
    pub frames: Vec<AllocFrame>,
    commonest: u64,
}

impl Caller {
    /// Share (0–1) of its process's calls, with the standard error of windows and of sampling.
    pub fn share(&self, session: &Session) -> Estimate {
        let within = self.share_of_calls(session);
        let process = session.alloc.processes.get(&self.pid);
        let function =
            process.and_then(|p| p.share_of_function(&self.allocator, session.cpus_used(self.pid)));
        match function {
            Some(function) => function.times(within),
            None => {
                let of_process = session.alloc.sampled.iter();
                let of_process = of_process.filter(|((pid, _), _)| *pid == self.pid);
                self.part_of(of_process.map(|(_, sum)| sum.calls).sum())
            }
        }
    }

    /// Calls a second, likewise; `None`: no window told of the function.
    pub fn allocs_per_s(&self, session: &Session) -> Option<Estimate> {
        let process = session.alloc.processes.get(&self.pid)?;
        let all = process.function_allocs_per_s(&self.allocator, session.cpus_used(self.pid))?;
        Some(all.times(self.share_of_calls(session)))
    }

    /// Bytes a second, likewise.
    pub fn bytes_per_s(&self, session: &Session) -> Option<Estimate> {
        let process = session.alloc.processes.get(&self.pid)?;
        let all = process.function_bytes_per_s(&self.allocator, session.cpus_used(self.pid))?;
        Some(all.times(share_of_bytes(&self.sampled, &self.all(session))))
    }

    /// Of the sampled calls of what it calls.
    fn share_of_calls(&self, session: &Session) -> Estimate {
        self.part_of(self.all(session).calls)
    }

    fn part_of(&self, calls: u64) -> Estimate {
        let all = calls.max(1) as f64;
        let share = self.sampled.calls as f64 / all;
        Estimate {
            value: share,
            error: drawn(share, all),
        }
    }

    /// Of its calls.
    pub fn mean_bytes(&self) -> f64 {
        self.sampled.bytes as f64 / self.sampled.calls.max(1) as f64
    }

    /// As people read it; `None`: nothing has a name.
    pub fn name(&self) -> Option<String> {
        let module = self.module.as_deref().map(file_name);
        let module = module.unwrap_or_else(|| "?".to_owned());
        let function = self.function.as_deref()?;
        Some(format!("{} ({module})", super::words::function(function)))
    }

    /// Sampled calls of the same function by the same process.
    fn all(&self, session: &Session) -> SiteSum {
        let key = (self.pid, self.allocator.clone());
        let sampled = session.alloc.sampled.get(&key);
        sampled.copied().unwrap_or_default()
    }
}

/// Share (0–1) of bytes that one of several kinds of calls asks for. It is at least as far off as its share of calls is; where no
/// others were sampled, theirs are taken to be of the same size.
fn share_of_bytes(part: &SiteSum, all: &SiteSum) -> Estimate {
    let bytes = all.bytes.max(1) as f64;
    let share = part.bytes as f64 / bytes;
    let others = (all.squares - part.squares).max(0.0);
    let variance = (1.0 - share).powi(2) * part.squares + share.powi(2) * others;
    let calls = all.calls.max(1) as f64;
    let size = part.bytes as f64 / part.calls.max(1) as f64;
    let other_size = match all.calls.saturating_sub(part.calls) {
        0 => size,
        calls => all.bytes.saturating_sub(part.bytes) as f64 / calls as f64,
    };
    let of_calls = drawn(part.calls as f64 / calls, calls);
    let mean = bytes / calls;
    Estimate {
        value: share,
        error: (variance.sqrt() / bytes).max(of_calls * size * other_size / (mean * mean)),
    }
}

/// All of them, the most frequent first. Calls that came from one function are one, whatever led there.
pub fn callers(session: &Session) -> Vec<Caller> {
    type Key<'a> = (u32, &'a str, Option<&'a str>, Option<&'a str>, Option<u64>);
    let mut rows = BTreeMap::<Key, Caller>::new();
    for ((pid, allocator, frames), sum) in &session.alloc.sites {
        let caller = frames.first();
        let module = caller.and_then(|frame| frame.module.as_deref());
        let function = caller.and_then(|frame| frame.function.as_deref());
        // Without a name, places in a module are told apart by where they are.
        let place = caller.filter(|_| function.is_none()).map(|frame| {
            if frame.module.is_some() {
                frame.offset
            } else {
                frame.address
            }
        });
        let row = rows
            .entry((*pid, allocator, module, function, place))
            .or_insert_with(|| Caller {
                pid: *pid,
                allocator: allocator.clone(),
                module: module.map(str::to_owned),
                function: function.map(str::to_owned),
                sampled: SiteSum::default(),
                frames: Vec::new(),
                commonest: 0,
            });
        row.sampled.add(sum);
        if sum.calls > row.commonest {
            row.commonest = sum.calls;
            row.frames.clone_from(frames);
        }
    }
    // Of each function; there may be thousands of callers.
    let mut rates = BTreeMap::<(u32, &str), f64>::new();
    for (pid, function) in session.alloc.sampled.keys() {
        let process = session.alloc.processes.get(pid);
        let rate = process.and_then(|p| p.function_allocs_per_s(function, session.cpus_used(*pid)));
        rates.insert((*pid, function), rate.map_or(0.0, |rate| rate.value));
    }
    let rate = |caller: &Caller| {
        let of = rates.get(&(caller.pid, caller.allocator.as_str()));
        of.map_or(0.0, |rate| rate * caller.share_of_calls(session).value)
    };
    let mut out: Vec<(f64, Caller)> = rows.into_values().map(|row| (rate(&row), row)).collect();
    out.sort_by(|(a_rate, a), (b_rate, b)| {
        b_rate
            .total_cmp(a_rate)
            .then(b.sampled.calls.cmp(&a.sampled.calls))
            .then(a.pid.cmp(&b.pid))
    });
    out.into_iter().map(|(_, caller)| caller).collect()
}

/// The last part of a path.
pub fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or(path).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(calls: u64, size: u64) -> SiteSum {
        SiteSum {
            calls,
            bytes: calls * size,
            squares: (calls * size * size) as f64,
        }
    }

    #[test]
    fn a_share_of_bytes_is_as_far_off_as_sizes_and_numbers_are() {
        let (small, large) = (calls(24, 64), calls(8, 5_000));
        let mut all = small;
        all.add(&large);
        let (of_small, of_large) = (share_of_bytes(&small, &all), share_of_bytes(&large, &all));
        assert!((of_small.value + of_large.value - 1.0).abs() < 1e-9);
        // What is wrong with one is wrong with the other: 24 of 32 are 0.75 ± 0.08, and so 0.025 to 0.055 of the bytes.
        assert!((of_small.error / of_large.error - 1.0).abs() < 0.01);
        assert!((0.012..0.02).contains(&of_small.error), "{of_small:?}");
        // All that was sampled: others may have been missed.
        let whole = share_of_bytes(&small, &small);
        assert!((whole.value - 1.0).abs() < 1e-9);
        assert!((0.02..0.1).contains(&whole.error), "{whole:?}");
    }
}
