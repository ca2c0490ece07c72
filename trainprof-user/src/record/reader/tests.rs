//! What the reader says of whole, cut and damaged recordings.

use super::super::format::MAX_PAYLOAD_LEN;
use super::*;

/// A recording of `u32` records, one block for each slice; complete if `end` says how many.
fn recording(blocks: &[&[u32]], end: Option<u64>) -> Vec<u8> {
    let mut bytes = FileHeader::current().encode();
    for (sequence, records) in (0..).zip(blocks) {
        let payload: Vec<u8> = records
            .iter()
            .flat_map(|record| postcard::to_stdvec(record).expect("encodes"))
            .collect();
        let count = u32::try_from(records.len()).expect("few");
        bytes.extend(block(BlockKind::Records, sequence, count, &payload));
    }
    if let Some(total) = end {
        let sequence = blocks.len() as u64;
        bytes.extend(block(BlockKind::End, sequence, 0, &total.to_le_bytes()));
    }
    bytes
}

fn block(kind: BlockKind, sequence: u64, count: u32, payload: &[u8]) -> Vec<u8> {
    let header = BlockHeader::of(kind, sequence, count, payload).expect("fits");
    [header.encode().as_slice(), payload].concat()
}

fn read(bytes: &[u8]) -> (Vec<u32>, Completeness) {
    let mut reader = Reader::from_bytes(bytes).expect("a recording");
    let records = reader.records().map(|r| r.expect("memory reads")).collect();
    assert!(matches!(reader.next_record::<u32>(), Ok(None)), "fused");
    (records, reader.completeness().clone())
}

#[test]
fn says_why_a_recording_ends() {
    let whole = recording(&[&[1, 2], &[300]], Some(3));
    let header = FileHeader::current().encode().len() as u64;
    let second = header + 32 + 2;
    let end = second + 32 + 2;
    let bad = |offset, what| Incomplete::Corrupted { offset, what }.into();
    let edited = |at: u64, flip: u8| {
        let mut bytes = whole.clone();
        bytes[at as usize] ^= flip;
        bytes
    };
    let followed_by = |more: &[u8]| [&whole[..end as usize], more].concat();
    let cut = |len: u64| whole[..len as usize].to_vec();
    type Case = (&'static str, Vec<u8>, &'static [u32], Completeness);
    let cases: Vec<Case> = vec![
        ("whole", whole.clone(), &[1, 2, 300], Completeness::Complete),
        (
            "no records",
            recording(&[], Some(0)),
            &[],
            Completeness::Complete,
        ),
        (
            "trailed",
            [whole.as_slice(), b"x"].concat(),
            &[1, 2, 300],
            Completeness::CompleteButTrailed { offset: end + 40 },
        ),
        (
            "only a header",
            cut(header),
            &[],
            Incomplete::NoEndMark { offset: header }.into(),
        ),
        (
            "no end mark",
            cut(end),
            &[1, 2, 300],
            Incomplete::NoEndMark { offset: end }.into(),
        ),
        (
            "cut within a block's header",
            cut(second + 3),
            &[1, 2],
            Incomplete::CutOff {
                offset: second,
                end: second + 3,
            }
            .into(),
        ),
        (
            "cut within a payload",
            cut(end - 1),
            &[1, 2],
            Incomplete::CutOff {
                offset: second,
                end: end - 1,
            }
            .into(),
        ),
        (
            "zeros after a power loss",
            followed_by(&[0; 7]),
            &[1, 2, 300],
            bad(end, Corruption::Header(BlockError::Sync)),
        ),
        (
            "damaged length",
            edited(second + 10, 0x40),
            &[1, 2],
            bad(second, Corruption::Header(BlockError::HeaderCrc)),
        ),
        (
            "damaged payload",
            edited(second + 33, 1),
            &[1, 2],
            bad(second, Corruption::PayloadCrc),
        ),
        (
            "a block twice",
            followed_by(&whole[second as usize..end as usize]),
            &[1, 2, 300],
            bad(
                end,
                Corruption::Sequence {
                    found: 1,
                    expected: 2,
                },
            ),
        ),
        (
            "end mark of another recording",
            recording(&[&[1, 2], &[300]], Some(4)),
            &[1, 2, 300],
            bad(
                end,
                Corruption::RecordCount {
                    promised: 4,
                    read: 3,
                },
            ),
        ),
        (
            "more bytes than records",
            followed_by(&block(BlockKind::Records, 2, 1, &[9, 9])),
            &[1, 2, 300, 9],
            bad(end, Corruption::Leftover),
        ),
        (
            "records of another type",
            followed_by(&block(BlockKind::Records, 2, 1, &[0xff; 9])),
            &[1, 2, 300],
            bad(
                end,
                Corruption::Undecodable {
                    record: 3,
                    source: postcard::Error::DeserializeBadVarint,
                },
            ),
        ),
    ];
    for (name, bytes, records, completeness) in cases {
        assert_eq!(read(&bytes), (records.to_vec(), completeness), "{name}");
    }
}

#[test]
fn a_record_that_another_version_knows_is_told_with_that_version() {
    let records = [[5].as_slice(), &[0xff; 9]].concat();
    let written_by = |writer: &str| {
        let header = FileHeader {
            writer: writer.to_owned(),
            ..FileHeader::current()
        };
        [header.encode(), block(BlockKind::Records, 0, 2, &records)].concat()
    };
    let (read_before, completeness) = read(&written_by("9.2.0"));
    assert_eq!(read_before, [5]);
    let note = completeness.note().expect("a note");
    assert!(
        note.contains("trainprof 9.2.0")
            && note.contains("Read it with")
            && !note.contains("corrupt"),
        "{note}"
    );
    // The same version has no other kinds of records.
    let (_, completeness) = read(&written_by(&FileHeader::current().writer));
    let note = completeness.note().expect("a note");
    assert!(note.contains("corrupted"), "{note}");
}

#[test]
fn refuses_what_it_cannot_read_and_says_what_to_do() {
    let good = FileHeader::current().encode();
    let newer = FileHeader {
        format: FORMAT + 1,
        flags: 0,
        writer: "9.2.0".to_owned(),
    };
    let flagged = FileHeader {
        flags: 1,
        ..FileHeader::current()
    };
    let mut damaged = good.clone();
    damaged[9] = 0xff;
    let cases: &[(&str, Vec<u8>, &[&str])] = &[
        ("empty", vec![], &["is empty"]),
        (
            "foreign",
            b"PK\x03\x04".to_vec(),
            &["is not a trainprof recording"],
        ),
        (
            "cut",
            good[..good.len() - 2].to_vec(),
            &["within its header"],
        ),
        ("damaged", damaged, &["damaged", "copy it again"]),
        (
            "newer",
            newer.encode(),
            &["format 2 by trainprof 9.2.0", "up to format 1", "upgrade"],
        ),
        (
            "flagged",
            flagged.encode(),
            &["flags 0x1", "by trainprof", "upgrade"],
        ),
    ];
    for (name, bytes, expected) in cases {
        let message = Reader::new(bytes.as_slice(), "/tmp/a.rec")
            .expect_err(name)
            .to_string();
        assert!(message.starts_with("/tmp/a.rec"), "{message}");
        for part in *expected {
            assert!(message.contains(part), "{name}: {message}");
        }
    }
}

#[test]
fn a_missing_file_and_a_directory_are_named() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let missing = Reader::open(dir.path().join("none")).expect_err("missing");
    assert!(missing.to_string().contains("cannot open"), "{missing}");
    assert!(missing.to_string().contains("check the path"), "{missing}");
    let directory = Reader::open(dir.path()).expect_err("a directory");
    assert!(directory.to_string().contains("cannot read"), "{directory}");
}

/// Gives `bytes`, then fails.
struct Failing<'a>(&'a [u8]);

impl Read for Failing<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        match self.0.read(out)? {
            0 => Err(io::Error::from_raw_os_error(libc::EIO)),
            n => Ok(n),
        }
    }
}

#[test]
fn a_failing_device_is_reported_once_after_what_it_gave() {
    let whole = recording(&[&[1, 2], &[3]], Some(3));
    let at = whole.len() - 45;
    let mut reader = Reader::new(Failing(&whole[..at]), "rec").expect("the header is there");
    let mut records = reader.records::<u32>();
    assert_eq!(records.next().and_then(Result::ok), Some(1));
    assert_eq!(records.next().and_then(Result::ok), Some(2));
    let error = records.next().expect("an error").expect_err("an error");
    assert!(
        matches!(&error, ReadError::Io { offset, .. } if *offset == at as u64),
        "{error}"
    );
    assert!(records.next().is_none());
    let expected = Incomplete::Unreadable { offset: at as u64 };
    assert_eq!(reader.completeness(), &expected.into());
}

/// Gives `bytes`, and remembers the largest buffer that it was asked to fill.
struct Asked<'a> {
    bytes: &'a [u8],
    most: usize,
}

impl Read for Asked<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.most = self.most.max(out.len());
        self.bytes.read(out)
    }
}

#[test]
fn a_claimed_length_takes_no_memory() {
    let mut bytes = FileHeader::current().encode();
    let claim = BlockHeader {
        kind: BlockKind::Records,
        payload_len: MAX_PAYLOAD_LEN as u32,
        record_count: 1,
        sequence: 0,
        payload_crc: 0,
    };
    bytes.extend(claim.encode());
    bytes.extend([0; 100]);
    let mut input = Asked {
        bytes: &bytes,
        most: 0,
    };
    let mut reader = Reader::new(&mut input, "rec").expect("a recording");
    assert!(matches!(reader.next_record::<u8>(), Ok(None)));
    assert!(input.most <= 64 * 1024, "asked for {}", input.most);
}
