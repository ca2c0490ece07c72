//! Reads arbitrary bytes as a recording and makes the report of it, as `trainprof report` does: no panic, no endless reading, bounded
//! memory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use trainprof_user::{
    record::{
        Completeness, Reader, Record,
        format::{BlockHeader, BlockKind, FileHeader},
    },
    report::{Shown, report, to_json, to_text},
    session::Session,
};

/// Rows of each table.
const TOP: usize = 5;
/// Columns of its text.
const WIDTH: usize = 80;

fuzz_target!(|input: &[u8]| {
    read(input);
    // Checksums keep nearly all inputs away from the decoding of records: once more, with right ones.
    read(&framed(input));
});

fn read(bytes: &[u8]) {
    let Ok(mut reader) = Reader::from_bytes(bytes) else {
        return;
    };
    let mut session = Session::default();
    let mut records = 0;
    while let Some(record) = reader
        .next_record::<Record>()
        .expect("reading memory does not fail")
    {
        session.apply(&record);
        records += 1;
    }
    assert!(records <= bytes.len(), "a record takes a byte at least");
    assert_eq!(reader.records_read(), records as u64);
    assert_ne!(reader.completeness(), &Completeness::Unread);
    assert!(
        matches!(reader.next_record::<Record>(), Ok(None)),
        "no record after the end"
    );
    let report = report(&session, Shown { top: TOP });
    let json = to_json(&report);
    assert!(json.starts_with('{') && !to_text(&report, TOP, WIDTH).is_empty());
}

/// A recording with `input` for its payloads: a length and a record count in front of each.
fn framed(mut input: &[u8]) -> Vec<u8> {
    let mut bytes = FileHeader::current().encode();
    let mut sequence = 0;
    while let [len, count, rest @ ..] = input {
        let (payload, rest) = rest.split_at(rest.len().min(usize::from(*len)));
        let kind = match count {
            255 => BlockKind::End,
            _ => BlockKind::Records,
        };
        if let Some(header) = BlockHeader::of(kind, sequence, u32::from(*count), payload) {
            bytes.extend(header.encode());
            bytes.extend(payload);
        }
        sequence += 1;
        input = rest;
    }
    bytes
}
