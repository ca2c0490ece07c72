//! Reads arbitrary bytes as a recording: no panic, no endless reading, bounded memory.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde::Deserialize;
use trainprof_user::record::format::{BlockHeader, BlockKind, FileHeader};
use trainprof_user::record::{Completeness, Reader};

/// Every shape that postcard decodes in a way of its own.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "decoded for its own sake")]
enum Fact {
    Tick,
    Wait { tid: u32, from: u64, kind: i16 },
    Path(String),
    Stack(Vec<u64>),
    Sample(Option<[u8; 3]>, bool, f64),
    Nested(Vec<(String, Option<char>)>),
}

fuzz_target!(|input: &[u8]| {
    read(input);
    // Checksums keep nearly all inputs away from the decoding of records: once more, with right ones.
    read(&framed(input));
});

fn read(bytes: &[u8]) {
    let Ok(mut reader) = Reader::from_bytes(bytes) else {
        return;
    };
    let mut records = 0;
    while let Some(fact) = reader
        .next_record::<Fact>()
        .expect("reading memory does not fail")
    {
        std::hint::black_box(fact);
        records += 1;
    }
    assert!(records <= bytes.len(), "a record takes a byte at least");
    assert_eq!(reader.records_read(), records as u64);
    assert_ne!(reader.completeness(), &Completeness::Unread);
    assert!(
        matches!(reader.next_record::<Fact>(), Ok(None)),
        "no record after the end"
    );
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
