//! Real recordings with damage, through everything that `trainprof report` does with them: each ends with an error or with a
//! report, never with a panic.
//!
//! Damage of the file is found by its checksums, so that what is analysed ends early. Damage with right checksums, as memory or
//! another build of trainprof may leave it, gets as far as the analysis: whole blocks that are missing, doubled or in another
//! order, and records with other values in them.

use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
};

use trainprof_user::{
    record::{
        ReadError, Record,
        format::{BLOCK_HEADER_LEN, BLOCK_TARGET_LEN, BlockHeader, BlockKind, FileHeader},
        reader::Reader,
    },
    report::{Shown, report, to_json, to_text},
    session::Session,
};

/// Cases of each sort of damage, over all recordings.
const CASES: usize = 300;

/// Numbers that look random and are the same each time (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// Changes so many bits.
    fn flip(&mut self, bytes: &mut [u8], count: usize) {
        for _ in 0..count {
            let at = self.below(bytes.len());
            bytes[at] ^= 1 << self.below(8);
        }
    }
}

/// A recording in its parts: payloads of blocks with the number of their records.
struct Parts {
    header: Vec<u8>,
    blocks: Vec<(u32, Vec<u8>)>,
}

impl Parts {
    fn of(bytes: &[u8]) -> Self {
        let begin = FileHeader::len_of(bytes).expect("a file header");
        let (header, mut rest) = bytes.split_at(begin);
        let mut blocks = Vec::new();
        while let Some((head, behind)) = rest.split_first_chunk::<BLOCK_HEADER_LEN>() {
            let block = BlockHeader::decode(head).expect("a block header");
            let (payload, next) = behind.split_at(block.payload_len as usize);
            if block.kind == BlockKind::Records {
                blocks.push((block.record_count, payload.to_vec()));
            }
            rest = next;
        }
        Self {
            header: header.to_vec(),
            blocks,
        }
    }

    /// The recording, with right numbers and checksums.
    fn together(&self) -> Vec<u8> {
        let mut out = self.header.clone();
        let mut records = 0;
        let mut add = |kind, sequence, count, payload: &[u8]| {
            let header = BlockHeader::of(kind, sequence, count, payload).expect("fits");
            out.extend(header.encode());
            out.extend(payload);
        };
        for (sequence, (count, payload)) in self.blocks.iter().enumerate() {
            add(BlockKind::Records, sequence as u64, *count, payload);
            records += u64::from(*count);
        }
        let end = records.to_le_bytes();
        add(BlockKind::End, self.blocks.len() as u64, 0, &end);
        out
    }
}

fn recordings() -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let mut out: Vec<PathBuf> = fs::read_dir(&folder)
        .expect("tests/golden")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "rec"))
        .collect();
    out.sort();
    out.into_iter()
        .map(|path| {
            let bytes = fs::read(&path).expect("a recording");
            (path, bytes)
        })
        .collect()
}

/// Both reports of what can be read; how many records that were.
fn reported(bytes: &[u8]) -> Result<usize, ReadError> {
    let mut reader = Reader::from_bytes(bytes)?;
    let mut session = Session::default();
    let mut count = 0;
    while let Some(record) = reader.next_record::<Record>()? {
        session.apply(&record);
        count += 1;
    }
    let report = report(&session, Shown::default());
    assert!(to_text(&report, 20, 80).contains("watched"));
    let json: serde_json::Value = serde_json::from_str(&to_json(&report)).expect("JSON");
    assert!(json["duration_s"].is_number());
    Ok(count)
}

/// Damages recordings in turn; which of them panicked. `damage` says what the recording is then.
fn survive(seed: u64, damage: impl Fn(&mut Dice, &[u8]) -> Vec<u8>) {
    let all = recordings();
    let mut dice = Dice(seed);
    let (mut errors, mut records) = (0, 0);
    for case in 0..CASES {
        let (path, bytes) = &all[case % all.len()];
        let damaged = damage(&mut dice, bytes);
        let result = catch_unwind(AssertUnwindSafe(|| reported(&damaged)));
        match result {
            Ok(Ok(count)) => records += count,
            Ok(Err(_)) => errors += 1,
            Err(_) => panic!("case {case}, {}", path.display()),
        }
    }
    // Else nothing but the reader was tried.
    assert!(errors < CASES / 2, "{errors} errors");
    assert!(records > CASES * 100, "{records} records");
}

#[test]
fn cut_and_flipped_files_are_errors_or_reports() {
    survive(1, |dice, bytes| {
        let mut bytes = bytes.to_vec();
        let keep = dice.below(bytes.len());
        match dice.below(3) {
            0 => bytes.truncate(keep),
            1 => dice.flip(&mut bytes, 1),
            _ => {
                let count = 1 + dice.below(20);
                dice.flip(&mut bytes, count);
                bytes.truncate(keep.max(1));
            }
        }
        bytes
    });
}

#[test]
fn blocks_that_are_missing_doubled_or_out_of_order_are_errors_or_reports() {
    survive(2, |dice, bytes| {
        let mut parts = Parts::of(bytes);
        for _ in 0..1 + dice.below(4) {
            let (a, b) = (
                dice.below(parts.blocks.len()),
                dice.below(parts.blocks.len()),
            );
            match dice.below(3) {
                0 if parts.blocks.len() > 2 => drop(parts.blocks.remove(a)),
                1 => parts.blocks.insert(b, parts.blocks[a].clone()),
                _ => parts.blocks.swap(a, b),
            }
        }
        parts.together()
    });
}

/// One in so many records has another value.
const OTHER: usize = 300;

#[test]
fn other_values_in_records_are_errors_or_reports() {
    survive(3, |dice, bytes| {
        let mut reader = Reader::from_bytes(bytes).expect("a recording");
        let mut parts = Parts {
            header: FileHeader::current().encode(),
            blocks: Vec::new(),
        };
        let (mut count, mut payload) = (0, Vec::new());
        while let Some(record) = reader.next_record::<Record>().expect("a record") {
            let mut encoded = postcard::to_stdvec(&record).expect("encoded");
            if dice.below(OTHER) == 0 {
                let mut other = encoded.clone();
                dice.flip(&mut other, 1);
                // As long as it is a record still, and nothing but that.
                if postcard::take_from_bytes::<Record>(&other)
                    .is_ok_and(|(_, rest)| rest.is_empty())
                {
                    encoded = other;
                }
            }
            payload.extend(encoded);
            count += 1;
            if payload.len() >= BLOCK_TARGET_LEN {
                parts.blocks.push((count, std::mem::take(&mut payload)));
                count = 0;
            }
        }
        parts.blocks.push((count, payload));
        parts.together()
    });
}
