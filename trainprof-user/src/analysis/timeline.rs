//! A thread's single waits as a timeline: in order, without overlaps, with polled waits put together.

use trainprof_common::thread::{NR_PREEMPTED, WakerKind};

use crate::{
    record::fact::{ObjectFact, WaitFact, WakerFact},
    session::{
        WaitId,
        kind::{WaitKind, wait_kind},
    },
};

/// Nanoseconds between two waits on one object, the first of which ended by time-out, that count as asking
/// again: CPython asks for its lock every 5 ms.
const ASK_AGAIN_NS: u64 = 300_000;

/// One stretch off the CPU: blocked from `from` to `woken`, runnable from then to `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    pub from: u64,
    pub woken: u64,
    pub to: u64,
    pub nr: i16,
    pub object: ObjectFact,
    pub waker: WakerFact,
    pub ran_before: u32,
    /// Times that it ended by time-out and was begun again.
    pub asked_again: u32,
}

impl Item {
    /// Kind of the wait; [`WaitKind::None`] when it was only put off the CPU.
    pub fn kind(&self) -> WaitKind {
        wait_kind(&self.id())
    }

    /// What it counts as in sums.
    pub fn id(&self) -> WaitId {
        WaitId {
            nr: self.nr,
            object: self.object,
            waker: self.waker,
        }
    }

    /// Whether a clock, or nobody that was seen, ended it.
    pub fn timed_out(&self) -> bool {
        self.waker.kind == WakerKind::Interrupt as u8 || self.waker.kind == WakerKind::Unknown as u8
    }
}

/// Builds a timeline from waits of one thread.
pub fn timeline(mut waits: Vec<WaitFact>) -> Vec<Item> {
    waits.sort_by_key(|wait| wait.from);
    let mut out: Vec<Item> = Vec::with_capacity(waits.len());
    for wait in waits {
        let from = wait.from.0;
        let woken = from + wait.wait_ns;
        let item = Item {
            from,
            woken,
            to: woken + wait.runnable_ns,
            nr: wait.nr,
            object: wait.object,
            waker: wait.waker,
            ran_before: wait.ran_before,
            asked_again: 0,
        };
        match out.last_mut() {
            Some(last) if asks_again(last, &item) => {
                last.woken = item.woken;
                last.to = item.to;
                last.waker = item.waker;
                last.asked_again += 1;
                last.ran_before = item.ran_before;
            }
            // Two facts of one time: the later one counts from where the first ends.
            Some(last) if item.from < last.to => {
                let end = last.to;
                if item.to > end {
                    out.push(Item {
                        from: item.from.max(end),
                        woken: item.woken.max(end),
                        ..item
                    });
                }
            }
            _ => out.push(item),
        }
    }
    out
}

fn asks_again(last: &Item, next: &Item) -> bool {
    last.nr != NR_PREEMPTED
        && last.nr == next.nr
        && same_object(last, next)
        && last.timed_out()
        && next.from.saturating_sub(last.to) <= ASK_AGAIN_NS
        && matches!(
            last.kind(),
            WaitKind::Futex | WaitKind::Poll | WaitKind::Pipe | WaitKind::Socket
        )
}

/// Condition variables wait on two neighbouring words in turn.
fn same_object(a: &Item, b: &Item) -> bool {
    a.object.class == b.object.class && line(&a.object) == line(&b.object)
}

/// Bits of an address within its cache line.
pub const LINE: u32 = 6;

/// A futex' place in memory, to the cache line; other objects' identity.
pub fn line(object: &ObjectFact) -> u64 {
    if object.class == 0 {
        object.id >> LINE
    } else {
        object.id
    }
}
