//! What windows on one process's allocator tell: rates, sizes and threads.

use std::collections::BTreeMap;

use super::{
    dearer::{Dearer, UNTOLD},
    rates::{Estimate, Rates, dearer, estimate, rates, slowed},
    shares::{Histogram, Part, Whole},
    strata::{Sizes, Stratum, sizes},
};
use crate::record::fact::{AllocCallsFact, AllocWindowFact};

/// Windows of one process.
#[derive(Clone, Debug, Default)]
pub struct ProcessAllocs {
    /// Of the windows that probed it, by function.
    rates: BTreeMap<String, Vec<Rates>>,
    /// (Calls, bytes) of allocating functions by name, as counted.
    pub functions: BTreeMap<String, (u64, u64)>,
    /// What windows counted of each function: calls and bytes.
    wholes: BTreeMap<String, (Whole, Whole)>,
    sizes: BTreeMap<String, Histogram>,
    pub threads: BTreeMap<u32, ThreadAllocs>,
    pub windows: u32,
    pub seconds: f64,
}

/// What windows counted of one thread.
#[derive(Clone, Debug, Default)]
pub struct ThreadAllocs {
    pub calls: u64,
    /// By function: its part of calls and of bytes.
    parts: BTreeMap<String, (Part, Part)>,
    sizes: BTreeMap<String, Histogram>,
}

impl ProcessAllocs {
    /// Adds a window that probed it.
    pub(super) fn window(&mut self, fact: &AllocWindowFact) {
        let seconds = fact.to.seconds_since(fact.from);
        self.windows += 1;
        self.seconds += seconds;
        let calls = fact.calls.iter().filter(|calls| calls.allocates);
        let calls: Vec<&AllocCallsFact> = calls.collect();
        self.count(&calls);
        // A window in which the process had no CPU says nothing.
        if seconds > 0.0 && fact.cpu_ns != Some(0) {
            for function in &fact.functions {
                self.rates
                    .entry(function.clone())
                    .or_default()
                    .push(rates(fact, function, seconds));
            }
        }
    }

    /// Adds what one window counted.
    fn count(&mut self, calls: &[&AllocCallsFact]) {
        // (Calls, bytes) of this window.
        let mut functions = BTreeMap::<&str, (u64, u64)>::new();
        let mut threads = BTreeMap::<u32, BTreeMap<&str, (u64, u64)>>::new();
        let mut sizes = BTreeMap::<(u32, &str), BTreeMap<u8, u64>>::new();
        for calls in calls {
            let function = calls.function.as_str();
            let of_thread = threads.entry(calls.tid).or_default();
            for sum in [
                functions.entry(function).or_default(),
                of_thread.entry(function).or_default(),
            ] {
                sum.0 += calls.count;
                sum.1 += calls.bytes;
            }
            let of_thread = sizes.entry((calls.tid, function)).or_default();
            for (bucket, count) in &calls.sizes {
                *of_thread.entry(*bucket).or_default() += u64::from(*count);
            }
        }
        for (function, (calls, bytes)) in &functions {
            let whole = self.wholes.entry((*function).to_owned()).or_default();
            whole.0.add(*calls as f64);
            whole.1.add(*bytes as f64);
            let sum = self.functions.entry((*function).to_owned()).or_default();
            sum.0 += calls;
            sum.1 += bytes;
        }
        for (tid, parts) in &threads {
            let thread = self.threads.entry(*tid).or_default();
            for (function, (calls, bytes)) in parts {
                let all = functions[function];
                let part = thread.parts.entry((*function).to_owned()).or_default();
                part.0.add(*calls as f64, all.0 as f64);
                part.1.add(*bytes as f64, all.1 as f64);
                thread.calls += calls;
                if let Some(sizes) = sizes.get(&(*tid, *function)) {
                    let of = thread.sizes.entry((*function).to_owned()).or_default();
                    of.add(sizes);
                }
            }
        }
        for function in functions.keys() {
            let of = sizes.iter().filter(|((_, of), _)| of == function);
            let together = together(of.map(|(_, sizes)| sizes));
            let whole = self.sizes.entry((*function).to_owned()).or_default();
            whole.add(&together);
        }
    }

    /// What a hit costs in it, by the function that is called most: its windows tell that best.
    fn dearer(&self) -> Dearer {
        let busiest = self.functions.iter().max_by_key(|(_, (calls, _))| calls);
        let rates = busiest.and_then(|(function, _)| self.rates.get(function));
        rates.map_or(UNTOLD, |rates| dearer(rates))
    }

    /// Calls a second of each function. `compared`: with the error that matters when they are compared with each other. What a hit
    /// costs is off alike for all of them.
    fn strata(&self, cpus: f64, compared: bool) -> impl Iterator<Item = (&str, Estimate)> {
        let mut dearer = self.dearer();
        if compared {
            dearer.error = 0.0;
        }
        // Of a process whose CPU time is not known they still compare.
        let cpus = if cpus > 0.0 { cpus } else { 1.0 };
        self.rates.iter().filter_map(move |(function, rates)| {
            let of = estimate(rates, dearer, cpus, &|rates| rates.seen.calls)?;
            Some((function.as_str(), of))
        })
    }

    pub(super) fn size_strata(
        &self,
        cpus: f64,
        compared: bool,
    ) -> impl Iterator<Item = Stratum<'_>> {
        self.strata(cpus, compared).filter_map(|(function, rate)| {
            let sizes = self.sizes.get(function)?;
            Some(Stratum { rate, sizes })
        })
    }

    /// How often calls asked for which size; `cpus`: see [`Self::allocs_per_s`].
    pub fn sizes(&self, cpus: f64) -> Sizes {
        sizes(self.size_strata(cpus, true))
    }

    pub fn thread_sizes(&self, thread: &ThreadAllocs, cpus: f64) -> Sizes {
        sizes(self.strata(cpus, true).filter_map(|(function, all)| {
            let share = self.share_in(thread, function, |both| &both.0, |both| &both.0)?;
            let rate = all.times(share);
            let sizes = thread.sizes.get(function)?;
            Some(Stratum { rate, sizes })
        }))
    }

    /// Share (0–1) of its calls that are of this function; `None`: no window told.
    pub fn share_of_function(&self, function: &str, cpus: f64) -> Option<Estimate> {
        let (mut of, mut others) = (None, Estimate::default());
        for (name, rate) in self.strata(cpus, true) {
            if name == function {
                of = Some(rate);
            } else {
                others.value += rate.value;
                others.error = others.error.hypot(rate.error);
            }
        }
        of?.share_beside(others)
    }

    /// Calls of one function a second, and their bytes.
    pub fn function_allocs_per_s(&self, function: &str, cpus: f64) -> Option<Estimate> {
        let rates = self.rates.get(function)?;
        estimate(rates, self.dearer(), cpus, &|rates| rates.seen.calls)
    }

    pub fn function_bytes_per_s(&self, function: &str, cpus: f64) -> Option<Estimate> {
        let rates = self.rates.get(function)?;
        estimate(rates, self.dearer(), cpus, &|rates| rates.bytes)
    }

    fn estimate(&self, cpus: f64, of: impl Fn(&Rates) -> f64) -> Option<Estimate> {
        let dearer = self.dearer();
        let functions = self.rates.values();
        functions
            .filter_map(|rates| estimate(rates, dearer, cpus, &of))
            .reduce(|sum, next| Estimate {
                value: sum.value + next.value,
                // They were seen in the same windows: what was wrong for one was so for all.
                error: sum.error + next.error,
            })
    }

    /// Allocations a second; `cpus`: CPU seconds that the process used a second, over the whole watch.
    pub fn allocs_per_s(&self, cpus: f64) -> Option<Estimate> {
        self.estimate(cpus, |rates| rates.seen.calls)
    }

    pub fn bytes_per_s(&self, cpus: f64) -> Option<Estimate> {
        self.estimate(cpus, |rates| rates.bytes)
    }

    /// The same of one of its threads.
    pub fn thread_allocs_per_s(&self, thread: &ThreadAllocs, cpus: f64) -> Option<Estimate> {
        self.of_thread(
            thread,
            cpus,
            |rates| rates.seen.calls,
            |both| &both.0,
            |both| &both.0,
        )
    }

    pub fn thread_bytes_per_s(&self, thread: &ThreadAllocs, cpus: f64) -> Option<Estimate> {
        self.of_thread(
            thread,
            cpus,
            |rates| rates.bytes,
            |both| &both.1,
            |both| &both.1,
        )
    }

    /// The thread's part of each function's rate: functions may have been probed in different windows.
    fn of_thread(
        &self,
        thread: &ThreadAllocs,
        cpus: f64,
        of: impl Fn(&Rates) -> f64,
        whole: impl Fn(&(Whole, Whole)) -> &Whole,
        part: impl Fn(&(Part, Part)) -> &Part,
    ) -> Option<Estimate> {
        let dearer = self.dearer();
        let mut sum = None;
        for (function, rates) in &self.rates {
            let Some(all) = estimate(rates, dearer, cpus, &of) else {
                continue;
            };
            let share = self.share_in(thread, function, &whole, &part);
            let share = share.unwrap_or_default();
            let factor = dearer.factor;
            // Who calls more often is slowed down by more: its share in windows is too small by up to so much.
            let unequal = share.value * (1.0 - share.value) * factor * slowed(rates, factor);
            let error = share.error.hypot(unequal);
            let sum: &mut Estimate = sum.get_or_insert_default();
            sum.value += all.value * share.value;
            sum.error += (all.error * share.value).hypot(all.value * error);
        }
        sum
    }

    /// A thread's share (0–1) of what is told of a function; `None`: it has none.
    fn share_in(
        &self,
        thread: &ThreadAllocs,
        function: &str,
        whole: impl Fn(&(Whole, Whole)) -> &Whole,
        part: impl Fn(&(Part, Part)) -> &Part,
    ) -> Option<Estimate> {
        let (parts, wholes) = thread.parts.get(function).zip(self.wholes.get(function))?;
        let calls = self.functions.get(function).map_or(0, |sum| sum.0);
        part(parts).of(whole(wholes), calls)
    }
}

/// Calls of all threads by size.
fn together<'a>(threads: impl Iterator<Item = &'a BTreeMap<u8, u64>>) -> BTreeMap<u8, u64> {
    let mut sum = BTreeMap::new();
    for (bucket, count) in threads.flatten() {
        *sum.entry(*bucket).or_default() += count;
    }
    sum
}
