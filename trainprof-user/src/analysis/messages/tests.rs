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
fn a_piece_behind_what_is_no_whole_piece_is_of_the_same_message() {
    // Each message has a length; then what is left of the buffer's pages, a whole piece, and in two of three the rest, in 0.3 ms.
    let mut reads = Vec::new();
    for message in 0..60_u64 {
        let at = message * 56 * MS;
        for (n, bytes) in [4, 61_937, 65_536].into_iter().enumerate() {
            reads.push((at + n as u64 * MS / 10, bytes));
        }
        if message % 3 > 0 {
            reads.push((at + 3 * MS / 10, 4096));
        }
    }
    assert_eq!(messages(&waited(&reads), &[]).len(), 60);
    // Where the next length was not noted, what comes later begins a message.
    let unnoted: Vec<(u64, u64)> = reads
        .iter()
        .filter(|(at, bytes)| *bytes != 4 || *at % (112 * MS) == 0)
        .copied()
        .collect();
    assert_eq!(messages(&waited(&unnoted), &[]).len(), 60);
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
