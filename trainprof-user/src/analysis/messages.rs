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

/// Whether a read may be followed by more of its message.
#[derive(Clone, Copy)]
enum Inside {
    No,
    /// It was a length or a whole piece: by more, however late.
    Whole,
    /// It was a part of one: by what comes at once.
    Part,
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
        // Not every read is noted: where a message's length comes before it, that tells its beginning, else its first piece. What is
        // no whole piece, as when a buffer has less room left, may be the end of it, unless more comes at once.
        let mut inside = Inside::No;
        let mut before: Option<Read> = None;
        for read in reads {
            let apart = before.is_none_or(|before| read.at - before.at > ONE_MESSAGE_NS);
            let worked =
                !told && before.is_some_and(|before| read.own - before.own > ONE_MESSAGE_NS);
            let length = read.bytes <= LENGTH_BYTES && apart;
            let goes_on = match inside {
                Inside::No => false,
                Inside::Whole => true,
                Inside::Part => !apart,
            };
            if length || is_piece(read.bytes) && (!goes_on || worked) {
                out.push(read.at);
            }
            inside = if length || is_piece(read.bytes) {
                Inside::Whole
            } else if goes_on && !apart {
                Inside::Part
            } else {
                Inside::No
            };
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
mod tests;
