//! Messages through pipes and sockets between the trainer and its workers: batches that it took, and its asking for more.

use std::collections::BTreeMap;

use trainprof_common::{
    op::{Class, Op},
    touch::LENGTH_BYTES,
};

use super::{
    bursts::own_times,
    cast::Cast,
    facts::Facts,
    locks::{Locks, lock_of},
    timeline::line,
};
use crate::{
    record::fact::{ObjectFact, TouchFact},
    session::kind::WaitKind,
};

/// Reads of one message on a pipe that follow each other within this time are one hand-over.
const ONE_MESSAGE_NS: u64 = 400_000;

/// What a pipe's buffer is made of: a read that ends with a whole one took what was there of a message, and more is to come.
const PIECE_BYTES: u64 = 4096;

/// A length that is as long as that is the next message's, however soon it comes: no batch is as short.
const HEADER_BYTES: u64 = 4;

/// So many lengths are no accident: messages are told by them. Of messages that are not large, so many (0–1) begin with one.
const LENGTHS: usize = 3;
const MOSTLY_TOLD: f64 = 0.75;

/// What is no longer than this, and than this part (0–1) of the usual message, is a word and no batch, where the reader wrote since the message
/// before: a loader that keeps its workers has each of them say that it is ready for the next epoch
/// (`_ResumeIteration` of torch/utils/data/_utils/worker.py: 84 bytes), or that its data have ended (104); one tensor takes 340. The last batch of an epoch may be as
/// short, but nothing is asked for before that.
const WORD_BYTES: u64 = 160;
const SHORT: f64 = 0.5;

/// What messages come and go through: a pipe, or one end of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Channel {
    class: u8,
    inode: u64,
}

impl Channel {
    fn of(object: &ObjectFact) -> Self {
        Self {
            class: object.class,
            inode: object.id,
        }
    }

    /// Nobody reads there what the same end wrote.
    fn is_duplex(self) -> bool {
        self.class == Class::Socket as u8
    }
}

/// Whether messages between the trainer and its workers may go through an object: pipes, which nobody but processes fill, and sockets on
/// which the trainer waited for workers.
fn carries(cast: &Cast, object: &ObjectFact) -> bool {
    object.class == Class::Pipe as u8
        || object.class == Class::Socket as u8 && cast.sockets.contains(&object.id)
}

/// Messages that some threads of the trainer took, by what they came through.
pub fn hand_overs(
    facts: &Facts,
    cast: &Cast,
    by: impl Fn(u32) -> bool,
) -> BTreeMap<Channel, Vec<u64>> {
    let mut out = BTreeMap::<Channel, Vec<u64>>::new();
    let own = written(facts, cast, &by);
    let mut writes: Vec<u64> = own.values().flatten().copied().collect();
    writes.sort_unstable();
    for (tid, touches) in facts.touching_threads() {
        if !by(tid) {
            continue;
        }
        let mut reads = BTreeMap::<Channel, Vec<(u64, u64)>>::new();
        for touch in touches {
            if touch.op == Op::Read.number() && touch.bytes > 0 && carries(cast, &touch.object) {
                let of_channel = reads.entry(Channel::of(&touch.object)).or_default();
                of_channel.push((touch.at.0, touch.bytes));
            }
        }
        for (channel, reads) in reads {
            let times: Vec<u64> = reads.iter().map(|(at, _)| *at).collect();
            let ran = own_times(facts, tid, &times);
            let reads: Vec<Read> = reads
                .into_iter()
                .zip(ran)
                .map(|((at, bytes), own)| Read { at, bytes, own })
                .collect();
            out.entry(channel)
                .or_default()
                .extend(messages(&reads, &writes));
        }
    }
    for times in out.values_mut() {
        times.sort_unstable();
    }
    // What they write themselves comes from nobody else.
    out.retain(|channel, times| {
        let others = |own: &Vec<u64>| channel.is_duplex() || own.len() * 2 < times.len();
        times.len() >= 2 && own.get(channel).is_none_or(others)
    });
    out
}

/// Whether an object is one of these channels.
pub(super) fn is_one_of(object: &ObjectFact, channels: &[Channel]) -> bool {
    channels.contains(&Channel::of(object))
}

/// Whether a call read from one of these channels.
pub(super) fn reads(touch: &TouchFact, channels: &[Channel]) -> bool {
    touch.op == Op::Read.number() && is_one_of(&touch.object, channels)
}

/// When one thread's reads on these channels returned, without what came right behind its length.
pub(super) fn began(touches: &[TouchFact], channels: &[Channel]) -> Vec<u64> {
    let mut lengths = BTreeMap::<Channel, u64>::new();
    let mut out = Vec::new();
    for touch in touches.iter().filter(|touch| reads(touch, channels)) {
        let (channel, at) = (Channel::of(&touch.object), touch.at.0);
        if touch.bytes <= LENGTH_BYTES {
            lengths.insert(channel, at);
        } else if lengths
            .remove(&channel)
            .is_some_and(|length| at - length <= ONE_MESSAGE_NS)
        {
            continue;
        }
        out.push(at);
    }
    out
}

/// When one thread began to take each message on these channels that begins with its length, and when it had all of it: it did
/// next to nothing until then.
pub(super) fn taken_from_to(facts: &Facts, tid: u32, channels: &[Channel]) -> Vec<(u64, u64)> {
    let touches = facts.touches(tid).iter();
    let reads: Vec<&TouchFact> = touches.filter(|touch| reads(touch, channels)).collect();
    let times: Vec<u64> = reads.iter().map(|read| read.at.0).collect();
    let own = own_times(facts, tid, &times);
    let mut out: Vec<(u64, u64)> = Vec::new();
    let mut inside = false;
    for (n, read) in reads.iter().enumerate() {
        let length = read.bytes <= LENGTH_BYTES;
        inside = length || inside && own[n] - own[n - 1] <= ONE_MESSAGE_NS;
        match out.last_mut() {
            Some(message) if inside && !length => message.1 = times[n],
            _ if length => out.push((times[n], times[n])),
            _ => {}
        }
    }
    out
}

/// When some threads wrote on each channel.
fn written(facts: &Facts, cast: &Cast, by: impl Fn(u32) -> bool) -> BTreeMap<Channel, Vec<u64>> {
    let mut out = BTreeMap::<Channel, Vec<u64>>::new();
    for (_, touches) in facts.touching_threads().filter(|(tid, _)| by(*tid)) {
        for touch in touches.iter().filter(|touch| writes(touch, cast)) {
            let channel = Channel::of(&touch.object);
            out.entry(channel).or_default().push(touch.at.0);
        }
    }
    out
}

/// Whether a call of the trainer wrote what may be a message to a worker.
fn writes(touch: &TouchFact, cast: &Cast) -> bool {
    touch.op == Op::Write.number() && carries(cast, &touch.object)
}

/// A read from a channel: when it returned, with how much, and how long its thread had run until then, but for a constant (ns).
#[derive(Clone, Copy)]
struct Read {
    at: u64,
    bytes: u64,
    own: u64,
}

/// When messages began, of one thread's reads on one channel. Where most of what it reads are pieces of large messages, these are the
/// batches, and however long their pieces take to come, they are one each: until the thread does something with them. Else what is
/// only a word is left out; `writes`: when its process wrote on any channel.
fn messages(reads: &[Read], writes: &[u64]) -> Vec<u64> {
    let is_piece = |bytes: u64| bytes.is_multiple_of(PIECE_BYTES);
    let pieces = reads.iter().filter(|read| is_piece(read.bytes)).count();
    // A reader with a buffer of its own finds lengths in that.
    let lengths = reads.iter().filter(|read| read.bytes <= LENGTH_BYTES);
    let told = lengths.count() >= LENGTHS;
    let mut out = Vec::new();
    if pieces * 2 > reads.len() {
        // Not every read is noted: where a message's length comes before it, that tells its beginning, else its first piece.
        let mut inside = false;
        let mut before: Option<Read> = None;
        for read in reads {
            let apart = before.is_none_or(|before| read.at - before.at > ONE_MESSAGE_NS);
            let worked =
                !told && before.is_some_and(|before| read.own - before.own > ONE_MESSAGE_NS);
            let length = read.bytes <= LENGTH_BYTES && apart;
            if length || is_piece(read.bytes) && (!inside || worked) {
                out.push(read.at);
            }
            inside = length || is_piece(read.bytes);
            before = Some(*read);
        }
        return out;
    }
    // When each that begins with its length began, and how much came after that.
    let mut whole: Vec<(u64, u64)> = Vec::new();
    // Lengths before which the thread worked; and what came late, but before it did anything.
    let (mut worked_on, mut late) = (0_usize, 0_usize);
    let mut before: Option<Read> = None;
    for read in reads {
        let apart = before.is_none_or(|before| read.at - before.at > ONE_MESSAGE_NS);
        let worked = before.is_none_or(|before| read.own - before.own > ONE_MESSAGE_NS);
        if apart {
            out.push(read.at);
        }
        if apart && read.bytes <= LENGTH_BYTES || read.bytes == HEADER_BYTES {
            whole.push((read.at, 0));
            worked_on += usize::from(worked);
        } else if let Some((_, bytes)) = whole.last_mut() {
            *bytes += read.bytes;
            late += usize::from(apart && !worked);
        }
        before = Some(*read);
    }
    // Who works on each message, and did nothing before a read, read the rest of one: whoever writes it had no CPU, say.
    if (worked_on as f64) < MOSTLY_TOLD * whole.len() as f64 {
        late = 0;
    }
    // Where most begin with one, what does not belongs to the one before, and came late.
    if told && whole.len() as f64 >= MOSTLY_TOLD * (out.len() - late) as f64 {
        return without_words(&whole, writes);
    }
    out
}

/// When messages began that are more than a word: of all, when they began and how long they are.
fn without_words(messages: &[(u64, u64)], writes: &[u64]) -> Vec<u64> {
    let mut lengths: Vec<u64> = messages.iter().map(|(_, bytes)| *bytes).collect();
    lengths.sort_unstable();
    let usual = lengths.get(lengths.len() / 2).copied().unwrap_or(0);
    // Of what came when calls were not noted one by one, the length is not known.
    let short =
        |bytes: u64| (1..=WORD_BYTES).contains(&bytes) && bytes as f64 <= SHORT * usual as f64;
    let mut out: Vec<u64> = Vec::with_capacity(messages.len());
    for (at, bytes) in messages {
        let since = out.last().copied().unwrap_or(0);
        let asked = writes.partition_point(|write| write <= at)
            > writes.partition_point(|write| *write <= since);
        if !(short(*bytes) && asked) {
            out.push(*at);
        }
    }
    out
}

/// Writes of the trainer's own threads, other than those that make batches, on channels: each at the time when the step thread
/// asked for it.
pub fn requests(facts: &Facts, cast: &Cast, locks: &Locks) -> Vec<u64> {
    let mut out = Vec::new();
    for (tid, touches) in facts.touching_threads() {
        if facts.pid(tid) != Some(cast.trainer) || cast.loader_threads.contains(&tid) {
            continue;
        }
        let writes: Vec<u64> = touches
            .iter()
            .filter(|touch| writes(touch, cast))
            .map(|touch| touch.at.0)
            .collect();
        out.extend(when_asked(facts, cast, locks, tid, writes));
    }
    out.sort_unstable();
    out
}

/// A helper thread that writes for the step thread does so late: it has to get a CPU and the interpreter's lock first, which
/// the step thread holds while it computes. So its write counts from when the step thread ended its longest sleep since the
/// write before.
fn when_asked(facts: &Facts, cast: &Cast, locks: &Locks, tid: u32, writes: Vec<u64>) -> Vec<u64> {
    if tid == cast.step_tid {
        return writes;
    }
    let sleeps: Vec<(u64, u64)> = facts
        .items(tid)
        .iter()
        .filter(|item| item.waker.tid == cast.step_tid && item.kind() == WaitKind::Futex)
        .filter(|item| lock_of(locks, facts, tid, line(&item.object)).is_none())
        .map(|item| (item.from, item.woken))
        .collect();
    let mut before = 0;
    writes
        .into_iter()
        .map(|at| {
            let first = sleeps.partition_point(|(from, _)| *from < before);
            before = at;
            sleeps[first..]
                .iter()
                .take_while(|(_, woken)| *woken <= at)
                .max_by_key(|(from, woken)| woken - from)
                .map_or(at, |(_, woken)| *woken)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use trainprof_common::op::{Class, Op};

    use super::{Channel, Read, began, messages};
    use crate::{
        record::fact::{ObjectFact, TouchFact},
        time::KtimeNs,
    };

    const MS: u64 = 1_000_000;

    /// Reads that were waited for.
    fn waited(reads: &[(u64, u64)]) -> Vec<Read> {
        let read = |(at, bytes): &(u64, u64)| Read {
            at: *at,
            bytes: *bytes,
            own: 0,
        };
        reads.iter().map(read).collect()
    }

    #[test]
    fn pieces_between_which_the_thread_works_are_of_several_messages() {
        // A first piece that fills the reader's own buffer, two more right after it, and 7 ms of work; lengths lie in the first.
        let mut reads = Vec::new();
        for message in 0..40 {
            let at = message * 8 * MS;
            for (piece, bytes) in [(0, 4096), (1, 28_672), (2, 65_536)] {
                let at = at + piece * MS / 10;
                reads.push(Read { at, bytes, own: at });
            }
        }
        assert_eq!(messages(&reads, &[]).len(), 40);
    }

    #[test]
    fn pieces_of_a_large_message_are_one_however_long_they_take() {
        // Each message: its length, forty pieces of which every tenth comes late, and what is left; not all ends were noted.
        let mut reads = Vec::new();
        let mut at = 0;
        for message in 0..20 {
            at += 20 * MS;
            reads.push((at, 4));
            for piece in 0..40 {
                at += if piece % 10 == 9 { 5 * MS } else { MS / 8 };
                reads.push((at, 65_536));
            }
            if message % 2 == 0 {
                reads.push((at + 1, 61_615));
            }
        }
        assert_eq!(messages(&waited(&reads), &[]).len(), 20);
    }

    #[test]
    fn the_length_before_a_message_tells_it_where_pieces_were_not_noted() {
        // Of each message, its length, and of two in three a piece; of one in four what is left, which is as short as a length.
        let mut reads = Vec::new();
        for message in 0..60_u64 {
            let at = message * 30 * MS;
            reads.push((at, 4));
            if message % 3 > 0 {
                reads.push((at + MS / 10, 4096));
                reads.push((at + MS / 5, 8192));
            }
            if message % 4 == 0 {
                reads.push((at + MS / 4, 9));
            }
        }
        assert_eq!(messages(&waited(&reads), &[]).len(), 60);
    }

    #[test]
    fn what_comes_late_after_its_length_is_of_the_same_message() {
        // A length and one piece each, which comes half a millisecond later in one of five; one in ten ends with another one.
        let mut reads = Vec::new();
        for message in 0..50_u64 {
            let at = message * 30 * MS;
            let late = if message % 5 == 0 { MS / 2 } else { MS / 10 };
            reads.push((at, 4));
            reads.push((at + late, 65_536 - message));
            if message % 10 == 3 {
                reads.push((at + late + MS, 20_000));
            }
            // One in 25 has the next one right behind it.
            if message % 25 == 7 {
                reads.push((at + late + MS / 10, 4));
                reads.push((at + late + MS / 5, 50_000));
            }
        }
        assert_eq!(messages(&waited(&reads), &[]).len(), 52);
    }

    #[test]
    fn what_comes_right_behind_its_length_begins_nothing() {
        let read = |(at, bytes): (u64, u64)| TouchFact {
            tid: 1,
            at: KtimeNs(at),
            op: Op::Read.number(),
            object: ObjectFact {
                id: 7,
                fileset: 0,
                class: Class::Pipe as u8,
            },
            bytes,
            skipped: 0,
        };
        // Two messages at once; one whose rest comes late, and one without a length.
        let reads = [
            (MS, 4),
            (MS + 10, 422),
            (MS + 60, 4),
            (MS + 70, 422),
            (9 * MS, 4),
            (12 * MS, 422),
            (20 * MS, 422),
        ]
        .map(read);
        let at = [MS, MS + 60, 9 * MS, 12 * MS, 20 * MS];
        let of = |inode: u64| Channel {
            class: Class::Pipe as u8,
            inode,
        };
        assert_eq!(began(&reads, &[of(7)]), at);
        assert!(began(&reads, &[of(8)]).is_empty());
    }

    #[test]
    fn words_that_were_asked_for_are_no_batches() {
        // Epochs of ten batches, before each of which two workers say that they are ready, and the last of which is as short as that.
        let (mut reads, mut writes, mut at) = (Vec::new(), Vec::new(), 0);
        for _ in 0..8 {
            writes.push(at + MS);
            for (n, bytes) in [84, 84, 347, 347, 347, 347, 347, 347, 347, 347, 347, 84]
                .into_iter()
                .enumerate()
            {
                at += 3 * MS;
                reads.extend([(at, 4), (at + MS / 50, bytes)]);
                // Two are asked for in advance.
                if (2..10).contains(&n) {
                    writes.push(at + MS / 10);
                }
            }
        }
        assert_eq!(messages(&waited(&reads), &writes).len(), 80);
    }

    #[test]
    fn small_messages_are_told_apart_by_time() {
        let reads: Vec<(u64, u64)> = (0..60)
            .map(|n| {
                (
                    n / 2 * 10 * MS + n % 2 * 50_000,
                    if n % 2 == 0 { 4 } else { 900 },
                )
            })
            .collect();
        assert_eq!(messages(&waited(&reads), &[]).len(), 30);
    }

    #[test]
    fn what_comes_late_before_the_thread_does_anything_is_of_the_same_message() {
        // Three in five have their rest 4 ms late. The thread computes for 30 ms on each, or it does nothing at all.
        let of = |work: u64| {
            let mut reads = Vec::new();
            for message in 0..60_u64 {
                let (at, own) = (message * 40 * MS, message * work);
                let late = if message % 5 < 3 { 4 * MS } else { MS / 20 };
                for (after, bytes) in [(0, 4), (MS / 20, 64_712), (MS / 20 + late, 36_864)] {
                    reads.push(Read {
                        at: at + after,
                        bytes,
                        own,
                    });
                }
            }
            messages(&reads, &[]).len()
        };
        assert_eq!((of(30 * MS), of(0)), (60, 96));
    }
}
