//! Works through a list in several lanes at the same time, each of which takes the next item when it is through with the last.

use std::{
    panic::resume_unwind,
    sync::{Mutex, PoisonError},
    thread,
};

/// What came of each item, in no order.
pub fn work<T: Send, R: Send>(
    lanes: usize,
    items: impl IntoIterator<Item = T, IntoIter: Send>,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let next = Mutex::new(items.into_iter());
    // A function of its own: the lock must not be held while an item is worked on.
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let lane = || {
        let mut done = Vec::new();
        while let Some(item) = take() {
            done.push(work(item));
        }
        done
    };
    thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes).map(|_| scope.spawn(lane)).collect();
        lanes
            .into_iter()
            .flat_map(|lane| lane.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::work;
    use std::sync::Barrier;

    #[test]
    fn each_item_is_worked_on_once_and_as_many_at_a_time_as_there_are_lanes() {
        // Nobody comes past it alone.
        let both = Barrier::new(2);
        let mut done = work(2, 0..6, |n| {
            both.wait();
            n * 10
        });
        done.sort_unstable();
        assert_eq!(done, [0, 10, 20, 30, 40, 50]);
    }
}
