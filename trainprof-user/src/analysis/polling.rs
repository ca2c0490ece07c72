//! Threads that sleep a little and look again whether something came: all their naps until it did are one wait, for whoever sent it.

use std::collections::HashMap;

use trainprof_common::{arch, thread::WakerKind};

use super::{facts::is_on_purpose, timeline::Item};
use crate::{
    record::fact::{ObjectFact, WakerFact},
    session::{Session, kind::WaitKind},
};

/// A nap is at most this long, ns.
const NAP_NS: u64 = 60_000_000;
/// A look takes at most this long, ns: who does more between two naps does its work.
const LOOK_NS: u64 = 1_000_000;
/// As many naps in a row are a loop that polls, and their lengths differ by no more than this factor.
const MIN_NAPS: usize = 3;
const ALIKE: f64 = 1.5;

/// Whether a wait was put together from naps.
pub fn is_polled(item: &Item) -> bool {
    item.asked_again as usize + 1 >= MIN_NAPS
        && item.object == ObjectFact::default()
        && item.kind() == WaitKind::Poll
}

/// Puts the naps of each thread together during which another process of the job sent something to its process.
pub fn put_together(session: &Session, timelines: &mut HashMap<u32, Vec<Item>>) {
    let Some(nr) = (0..=i16::MAX).find(|nr| arch::syscall_name(*nr) == Some("poll")) else {
        return;
    };
    let pid = |tid: u32| session.thread(tid).map(|thread| thread.pid);
    let mut sent = HashMap::<u32, Vec<Sent>>::new();
    for (tid, items) in timelines.iter() {
        let Some(own) = pid(*tid) else { continue };
        let of_others = items.iter().filter(|item| {
            is_on_purpose(item.waker.kind) && pid(item.waker.tid).is_some_and(|pid| pid != own)
        });
        sent.entry(own)
            .or_default()
            .extend(of_others.map(|item| Sent {
                at: item.woken,
                by: item.waker.tid,
                to: *tid,
            }));
    }
    sent.values_mut()
        .for_each(|sent| sent.sort_by_key(|sent| sent.at));
    for (tid, items) in timelines.iter_mut() {
        if let Some(sent) = pid(*tid).and_then(|pid| sent.get(&pid)) {
            *items = of_thread(*tid, items, sent, nr);
        }
    }
}

/// Something that another process sent.
struct Sent {
    at: u64,
    by: u32,
    to: u32,
}

fn of_thread(tid: u32, items: &[Item], sent: &[Sent], nr: i16) -> Vec<Item> {
    let mut out = Vec::with_capacity(items.len());
    let mut at = 0;
    while at < items.len() {
        let naps = naps(&items[at..]);
        if naps.count < MIN_NAPS {
            out.push(items[at]);
            at += 1;
            continue;
        }
        let row = &items[at..at + naps.items];
        let (first, last) = (row[0], row[naps.items - 1]);
        let upto = sent.partition_point(|sent| sent.at <= last.to);
        let sender = sent[..upto]
            .iter()
            .rev()
            .take_while(|sent| sent.at >= first.from)
            .find(|sent| sent.to != tid);
        match sender {
            Some(sender) => out.push(Item {
                from: first.from,
                nr,
                object: ObjectFact::default(),
                waker: WakerFact {
                    tid: sender.by,
                    kind: WakerKind::Thread as u8,
                },
                asked_again: naps.count as u32 - 1,
                ..last
            }),
            None => out.extend(row),
        }
        at += naps.items;
    }
    out
}

/// The naps that a timeline begins with, and how many of its items they and what is between them are.
#[derive(Default)]
struct Naps {
    count: usize,
    items: usize,
}

fn naps(items: &[Item]) -> Naps {
    let mut found = Naps::default();
    let Some(first) = items.first().filter(|item| is_nap(item)) else {
        return found;
    };
    let usual = (first.woken - first.from) as f64;
    let mut end = first.from;
    for (n, item) in items.iter().enumerate() {
        if item.to > end + NAP_NS + LOOK_NS || item.from > end + LOOK_NS {
            break;
        }
        let length = (item.woken - item.from) as f64;
        if is_nap(item) && length < usual * ALIKE && usual < length * ALIKE {
            found.count += 1;
            found.items = n + 1;
            end = item.to;
        }
    }
    found
}

fn is_nap(item: &Item) -> bool {
    item.kind() == WaitKind::Sleep && item.timed_out() && item.woken - item.from <= NAP_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const SLEEP: i16 = 230;
    const POLL: i16 = 7;

    fn nap(from: u64, length: u64) -> Item {
        Item {
            from,
            woken: from + length,
            to: from + length,
            nr: SLEEP,
            object: ObjectFact::default(),
            waker: WakerFact {
                tid: 0,
                kind: WakerKind::Interrupt as u8,
            },
            ran_before: 0,
            asked_again: 0,
        }
    }

    fn row(begin: u64, naps: u64, pause: u64) -> Vec<Item> {
        (0..naps)
            .map(|n| nap(begin + n * (10 * MS + pause), 10 * MS))
            .collect()
    }

    #[test]
    fn naps_until_something_came_are_one_wait_for_its_sender() {
        let mut items = row(0, 5, MS / 10);
        items.extend(row(200 * MS, 2, MS / 10));
        let sent = [Sent {
            at: 45 * MS,
            by: 9,
            to: 2,
        }];
        let out = of_thread(1, &items, &sent, POLL);
        assert_eq!(out.len(), 3);
        assert_eq!((out[0].from, out[0].woken), (0, items[4].woken));
        assert_eq!(out[0].waker.tid, 9);
        assert!(is_polled(&out[0]) && !is_polled(&out[1]));
    }

    #[test]
    fn sleeping_between_work_or_with_nothing_coming_stays_sleeping() {
        let sent = |to| {
            [Sent {
                at: 15 * MS,
                by: 9,
                to,
            }]
        };
        assert_eq!(of_thread(1, &row(0, 5, 5 * MS), &sent(2), POLL).len(), 5);
        assert_eq!(of_thread(1, &row(0, 5, MS / 10), &[], POLL).len(), 5);
        // What the thread itself is woken by is no news to be polled for.
        assert_eq!(of_thread(1, &row(0, 5, MS / 10), &sent(1), POLL).len(), 5);
    }
}
