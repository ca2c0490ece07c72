//! What the interpreter does around calls on files: it makes their arguments, and objects of what they give. Whoever looks at fewer files
//! saves that as well.

use std::collections::BTreeMap;

use crate::analysis::{facts::Facts, running::split};

/// The interpreter's part of one call, ns, roughly: with CPython 3.11 at 2 GHz `os.stat` takes 2700 in all, `open`, `read` and `close` of the io
/// module 12 300 together, and a path of `Path.iterdir` with its `stat` 9500 (timeit, files in the cache); the kernel has 1000 to 2500 of each call.
const AROUND_NS: f64 = 4000.0;
/// So many calls a second do not matter.
const FEW_PER_S: f64 = 1000.0;

/// What is known of one thread.
#[derive(Clone, Copy, Debug, Default)]
struct Around {
    /// The interpreter's time around calls that open, look up, list or close files, as a multiple of the kernel's in them.
    times: f64,
    /// Part (0–1) of its other work that may be around such calls too: what is done there may take twice as long as usual.
    more: f64,
}

/// By thread.
#[derive(Clone, Debug, Default)]
pub struct AroundCalls(BTreeMap<u32, Around>);

impl AroundCalls {
    pub fn new(facts: &Facts) -> Self {
        let few = FEW_PER_S * facts.session.duration_s();
        let threads = facts.session.threads.values();
        let many = threads.filter(|thread| thread.activity.file_meta_calls as f64 >= few);
        Self(
            many.filter_map(|thread| {
                let tid = thread.key.tid;
                let all = split(facts, tid, &[]);
                let ran = thread.run_ns as f64;
                let kernel_ns = all.file_meta * ran;
                let around_ns = AROUND_NS * thread.activity.file_meta_calls as f64;
                let rest_ns = (all.interpreter * ran - around_ns).max(1.0);
                let around = Around {
                    times: around_ns / kernel_ns,
                    more: (around_ns / rest_ns).min(1.0),
                };
                (kernel_ns > 0.0 && all.interpreter > 0.0).then_some((tid, around))
            })
            .collect(),
        )
    }

    /// The part (0–1) of a thread's running that it is, where the kernel has the part `file_meta` for such calls and the interpreter the
    /// part `interpreter`.
    pub fn share(&self, tid: u32, file_meta: f64, interpreter: f64) -> f64 {
        let times = self.0.get(&tid).map_or(0.0, |around| around.times);
        (file_meta * times).min(interpreter)
    }

    /// The part (0–1) of a thread's other work on input that may be around such calls too.
    pub fn more(&self, tid: u32) -> f64 {
        self.0.get(&tid).map_or(0.0, |around| around.more)
    }
}
