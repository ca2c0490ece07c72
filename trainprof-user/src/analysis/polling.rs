//! Threads that sleep a little and look again whether something came: all their naps until it did are one wait, for whoever sent it.
//!
//! What is left in shared memory is sent by no call. Then it is whoever of the job brings or makes input and was at work all the while.

use std::collections::HashMap;

use trainprof_common::{arch, thread::WakerKind};

use super::{
    facts::is_on_purpose,
    running::{Call, call},
    spans::{overlap, union},
    timeline::Item,
};
use crate::{
    record::fact::{ObjectFact, WakerFact},
    session::{
        Session, Thread,
        kind::WaitKind,
        roles::{for_room, is_ancestor},
    },
};

/// A nap is at most this long, ns.
const NAP_NS: u64 = 60_000_000;
/// A look takes at most this long, ns: who does more between two naps does its work.
const LOOK_NS: u64 = 1_000_000;
/// As many naps in a row are a loop that polls, and their lengths differ by no more than this factor.
const MIN_NAPS: usize = 3;
const ALIKE: f64 = 1.5;
/// Rows of naps that show a habit.
const MIN_ROWS: usize = 20;
/// Of the rows of naps of a thread that polls, so many (0–1) end when something came. Who sleeps for another reason finds
/// something now and then.
const FOUND: f64 = 0.6;
/// Who is waited for so is at work for so much (0–1) of that time.
const AT_WORK: f64 = 0.7;
/// Who fetches hears so many times what it says.
const HEARS: u64 = 4;
/// Who waits for an answer from outside the job for longer (ns) waits for something to do.
const ANSWER_NS: u64 = 1_000_000_000;
/// Who takes no input makes some, when it runs for so much (0–1) of the time.
const BUSY: f64 = 0.3;

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
    let makers = Makers::new(session, timelines);
    for (tid, items) in timelines.iter_mut() {
        if let Some(pid) = pid(*tid) {
            let sent = sent.get(&pid).map_or(&[][..], Vec::as_slice);
            let child = |maker: u32| is_ancestor(session, pid, maker);
            let at_work = |from, to| makers.at_work(child, from, to);
            *items = of_thread(*tid, items, sent, at_work, nr);
        }
    }
}

/// A main thread that brings input, or makes some.
struct Maker {
    pid: u32,
    /// When it waited for something to do.
    away: Vec<(u64, u64)>,
}

struct Makers(Vec<Maker>);

impl Makers {
    fn new(session: &Session, timelines: &HashMap<u32, Vec<Item>>) -> Self {
        let brings = |thread: &&Thread| {
            let busy = BUSY * thread.present_ns(session.until) as f64;
            thread.key.tid == thread.pid
                && (thread.activity.takes_input() || thread.run_ns as f64 >= busy)
        };
        let maker = |thread: &Thread| {
            let items = timelines.get(&thread.pid).map_or(&[][..], Vec::as_slice);
            let activity = &thread.activity;
            let hears = activity.socket_read_bytes > HEARS * activity.socket_write_bytes;
            Maker {
                pid: thread.pid,
                away: union(
                    items
                        .iter()
                        .filter(|item| !fetches(session, item, hears))
                        .map(|item| (item.from, item.woken))
                        .collect(),
                ),
            }
        };
        Self(session.threads.values().filter(brings).map(maker).collect())
    }

    /// Who of these processes was at work for most of a time: it ran, wanted a CPU, fetched something, or made no wait that is known.
    fn at_work(&self, of: impl Fn(u32) -> bool, from: u64, to: u64) -> Option<u32> {
        let makers = self.0.iter().filter(|maker| of(maker.pid));
        let (least, pid) = makers
            .map(|maker| (overlap(&maker.away, from, to), maker.pid))
            .min()?;
        (least as f64 <= (1.0 - AT_WORK) * (to - from) as f64).then_some(pid)
    }
}

/// Whether a wait was for a file's bytes, or, of who hears far more than it says, for an answer from outside the job.
fn fetches(session: &Session, item: &Item, hears: bool) -> bool {
    let in_job = is_on_purpose(item.waker.kind) && session.thread(item.waker.tid).is_some();
    let soon = item.woken - item.from <= ANSWER_NS;
    match item.kind() {
        _ if call(item.nr) == Call::Write => false,
        WaitKind::File | WaitKind::Fault => true,
        WaitKind::Uring => !in_job && soon,
        WaitKind::Socket | WaitKind::Poll => {
            hears && !for_room(item.nr) && !in_job && !item.timed_out() && soon
        }
        _ => false,
    }
}

/// Something that another process sent.
struct Sent {
    at: u64,
    by: u32,
    to: u32,
}

fn of_thread(
    tid: u32,
    items: &[Item],
    sent: &[Sent],
    at_work: impl Fn(u64, u64) -> Option<u32>,
    nr: i16,
) -> Vec<Item> {
    let mut rows = rows(items, MIN_NAPS);
    let mut senders: Vec<Option<u32>> = rows
        .iter()
        .map(|row| sender(tid, &items[row.at..row.at + row.items], sent))
        .collect();
    let found = senders.iter().flatten().count();
    let polls = found as f64 >= FOUND * rows.len() as f64;
    let at_work = |row: &Row| at_work(items[row.at].from, items[row.at + row.items - 1].woken);
    if found == 0 && rows.len() >= MIN_ROWS {
        let made = rows.iter().filter(|row| at_work(row).is_some()).count();
        if made as f64 >= FOUND * rows.len() as f64 {
            // Who polls finds it at the first look, too.
            rows = self::rows(items, 1);
            senders = vec![None; rows.len()];
        }
    }
    let mut out = Vec::with_capacity(items.len());
    let mut at = 0;
    for (row, sender) in rows.iter().zip(senders) {
        out.extend(&items[at..row.at]);
        at = row.at + row.items;
        let (first, last) = (items[row.at], items[at - 1]);
        let by = if found > 0 {
            sender.filter(|_| polls)
        } else {
            at_work(row)
        };
        match by {
            Some(by) => out.push(Item {
                from: first.from,
                nr,
                object: ObjectFact::default(),
                waker: WakerFact {
                    tid: by,
                    kind: WakerKind::Thread as u8,
                },
                asked_again: row.naps as u32 - 1,
                ..last
            }),
            None => out.extend(&items[row.at..at]),
        }
    }
    out.extend(&items[at..]);
    out
}

/// Who sent what a row of naps found in the end: something that came during the last of them.
fn sender(tid: u32, row: &[Item], sent: &[Sent]) -> Option<u32> {
    let last = row.last()?;
    let upto = sent.partition_point(|sent| sent.at <= last.to);
    sent[..upto]
        .iter()
        .rev()
        .take_while(|sent| sent.at + LOOK_NS >= last.from)
        .find(|sent| sent.to != tid)
        .map(|sent| sent.by)
}

/// Naps in a row: where the first is in a timeline, how many there are, and how many items they and what is between them are.
struct Row {
    at: usize,
    naps: usize,
    items: usize,
}

fn rows(items: &[Item], least: usize) -> Vec<Row> {
    let mut out = Vec::new();
    let mut at = 0;
    while at < items.len() {
        let naps = naps(&items[at..]);
        if naps.count < least {
            at += 1;
            continue;
        }
        out.push(Row {
            at,
            naps: naps.count,
            items: naps.items,
        });
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
    fn nobody(_: u64, _: u64) -> Option<u32> {
        None
    }

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
        let out = of_thread(1, &items, &sent, nobody, POLL);
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
        let left = |items: &[Item], sent: &[Sent]| of_thread(1, items, sent, nobody, POLL).len();
        assert_eq!(left(&row(0, 5, 5 * MS), &sent(2)), 5);
        assert_eq!(left(&row(0, 5, MS / 10), &[]), 5);
        // What the thread itself is woken by is no news to be polled for.
        assert_eq!(left(&row(0, 5, MS / 10), &sent(1)), 5);
    }

    #[test]
    fn who_sleeps_at_its_work_finds_something_only_now_and_then() {
        // A batch of five sleeps; work for more comes at any time.
        let items: Vec<Item> = (0..8).flat_map(|n| row(n * 60 * MS, 5, MS / 10)).collect();
        let sent: Vec<Sent> = (0..8)
            .map(|n| Sent {
                at: n * 60 * MS + 5 * MS + n * 5 * MS,
                by: 9,
                to: 2,
            })
            .collect();
        assert_eq!(of_thread(1, &items, &sent, nobody, POLL).len(), items.len());
    }

    #[test]
    fn what_nobody_sent_is_waited_for_from_who_was_at_work() {
        let maker = |pid, away| Maker { pid, away };
        let makers = Makers(vec![
            maker(1, vec![]),
            maker(8, vec![(0, 100 * MS)]),
            maker(9, vec![(0, 5 * MS), (60 * MS, 80 * MS)]),
        ]);
        let at_work = |from, to| makers.at_work(|pid| pid != 1, from, to);
        let items = row(0, 5, MS / 10);
        let out = of_thread(1, &items, &[], at_work, POLL);
        assert_eq!((out.len(), out[0].waker.tid), (1, 9));
        // Nobody else is at work for long enough then.
        assert_eq!(
            of_thread(1, &row(60 * MS, 4, MS / 10), &[], at_work, POLL).len(),
            4
        );
    }
}
