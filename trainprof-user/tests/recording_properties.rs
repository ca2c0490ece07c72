//! Properties of the recording file that hold for every content, cut and damage.

use std::fs;

use proptest::collection::vec;
use proptest::prelude::*;
use serde::{Deserialize, Serialize};
use trainprof_user::record::format::{BlockHeader, BlockKind, FileHeader};
use trainprof_user::record::{Completeness, Incomplete, ReadError, Reader, Writer};

/// Stands for a recording's record: every shape that postcard encodes in a way of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Fact {
    Tick,
    Wait { tid: u32, from: u64, kind: i16 },
    Path(String),
    Stack(Vec<u64>),
    Sample(Option<[u8; 3]>, bool),
}

fn fact() -> impl Strategy<Value = Fact> {
    prop_oneof![
        Just(Fact::Tick),
        any::<(u32, u64, i16)>().prop_map(|(tid, from, kind)| Fact::Wait { tid, from, kind }),
        ".{0,40}".prop_map(Fact::Path),
        vec(any::<u64>(), 0..20).prop_map(Fact::Stack),
        any::<(Option<[u8; 3]>, bool)>().prop_map(|(bytes, flag)| Fact::Sample(bytes, flag)),
    ]
}

/// Facts, by the block that they are flushed in.
fn blocks() -> impl Strategy<Value = Vec<Vec<Fact>>> {
    vec(vec(fact(), 1..12), 0..6)
}

struct Recorded {
    bytes: Vec<u8>,
    /// Length of the file and number of its records after the header and after each block.
    boundaries: Vec<(usize, usize)>,
}

fn record(blocks: &[Vec<Fact>]) -> Recorded {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("rec");
    let mut writer = Writer::create(&path).expect("created");
    let boundary = |writer: &Writer| {
        let written = writer.written();
        (written.bytes as usize, written.records as usize)
    };
    let mut boundaries = vec![boundary(&writer)];
    for facts in blocks {
        for fact in facts {
            writer.push(fact).expect("stored");
        }
        writer.flush_block().expect("written");
        boundaries.push(boundary(&writer));
    }
    let summary = writer.finish().expect("finished");
    let bytes = fs::read(&path).expect("readable");
    assert_eq!(summary.bytes, bytes.len() as u64);
    assert_eq!(summary.blocks, blocks.len() as u64);
    Recorded { bytes, boundaries }
}

fn read(bytes: &[u8]) -> Result<(Vec<Fact>, Completeness), ReadError> {
    let mut reader = Reader::from_bytes(bytes)?;
    let facts = reader.records().collect::<Result<_, _>>()?;
    Ok((facts, reader.completeness().clone()))
}

proptest! {
    #[test]
    fn what_is_recorded_is_read(blocks in blocks()) {
        let (facts, completeness) = read(&record(&blocks).bytes).expect("a recording");
        prop_assert_eq!(facts, blocks.concat());
        prop_assert_eq!(completeness, Completeness::Complete);
    }

    #[test]
    fn a_cut_recording_gives_its_whole_blocks(blocks in blocks()) {
        let recorded = record(&blocks);
        let all = blocks.concat();
        let header = recorded.boundaries[0].0;
        for len in 0..recorded.bytes.len() {
            let result = read(&recorded.bytes[..len]);
            if len < header {
                let refused = matches!(
                    result,
                    Err(ReadError::TruncatedHeader { .. } | ReadError::Empty { .. })
                );
                prop_assert!(refused, "cut at {}", len);
                continue;
            }
            let (facts, completeness) = result.expect("the header is whole");
            let last = recorded.boundaries.iter().rfind(|(end, _)| *end <= len);
            let (end, records) = *last.expect("the header is whole");
            prop_assert_eq!(&facts, &all[..records], "cut at {}", len);
            let offset = end as u64;
            let expected = if end == len {
                Incomplete::NoEndMark { offset }
            } else {
                Incomplete::CutOff { offset, end: len as u64 }
            };
            prop_assert_eq!(completeness, expected.into(), "cut at {}", len);
        }
    }

    #[test]
    fn a_flipped_bit_never_passes(blocks in blocks(), at in any::<prop::sample::Index>()) {
        let mut recorded = record(&blocks);
        let bit = at.index(recorded.bytes.len() * 8);
        recorded.bytes[bit / 8] ^= 1 << (bit % 8);
        let Ok((facts, completeness)) = read(&recorded.bytes) else {
            prop_assert!(bit / 8 < recorded.boundaries[0].0);
            return Ok(());
        };
        let before = recorded.boundaries.iter().rfind(|(end, _)| *end <= bit / 8);
        let (end, records) = *before.expect("the header was accepted");
        prop_assert_eq!(facts, &blocks.concat()[..records]);
        let damaged = matches!(
            completeness,
            Completeness::Incomplete(Incomplete::Corrupted { offset, .. }) if offset == end as u64
        );
        prop_assert!(damaged, "{:?}", completeness);
    }

    /// As a power loss leaves it: the file is longer than what the device took of it.
    #[test]
    fn a_recording_that_ends_in_zeros_gives_its_whole_blocks(
        blocks in blocks(),
        at in any::<prop::sample::Index>(),
        zeros in 1..9000usize,
    ) {
        let recorded = record(&blocks);
        let header = recorded.boundaries[0].0;
        let len = header + at.index(recorded.bytes.len() - header);
        let mut bytes = recorded.bytes[..len].to_vec();
        bytes.resize(len + zeros, 0);
        let (facts, completeness) = read(&bytes).expect("the header is whole");
        // Zeros may be what was written there: what they make whole counts.
        let last = recorded
            .boundaries
            .iter()
            .rfind(|(end, _)| *end <= len || bytes.get(..*end) == recorded.bytes.get(..*end));
        let (_, records) = *last.expect("the header is whole");
        prop_assert_eq!(facts, &blocks.concat()[..records]);
        prop_assert!(!completeness.is_complete() || bytes.starts_with(&recorded.bytes));
        prop_assert!(completeness.note().is_some());
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in vec(any::<u8>(), 0..300)) {
        let _ = read(&bytes);
        let behind_header = [FileHeader::current().encode(), bytes].concat();
        let (facts, completeness) = read(&behind_header).expect("the header is right");
        prop_assert!(facts.is_empty());
        prop_assert!(!completeness.is_complete());
    }

    /// As when another build recorded them: nothing but the decoding itself stands in the way.
    #[test]
    fn any_payload_with_right_checksums_is_read_without_panic(
        payload in vec(any::<u8>(), 0..300),
        count in 0..300u32,
    ) {
        let mut bytes = FileHeader::current().encode();
        let header = BlockHeader::of(BlockKind::Records, 0, count, &payload).expect("fits");
        bytes.extend(header.encode());
        bytes.extend(&payload);
        let (facts, completeness) = read(&bytes).expect("the header is right");
        prop_assert!(facts.len() <= payload.len());
        prop_assert!(!completeness.is_complete());
    }
}
