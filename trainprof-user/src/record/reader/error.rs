//! What can be wrong with a recording, and what to do about it.

use std::io;
use std::path::PathBuf;

use super::super::format::BlockError;

/// Why a recording could not be read at all, or not further.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file could not be opened or read.
    #[error("{path}: cannot {operation} the recording at byte {offset}: {source}; {cure}", path = path.display(), cure = cure(source))]
    Io {
        /// What was tried, as a verb.
        operation: &'static str,
        /// The recording.
        path: PathBuf,
        /// Bytes read before.
        offset: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// The file has no bytes.
    #[error("{path} is empty: it was created and nothing was recorded; record again", path = path.display())]
    Empty {
        /// The recording.
        path: PathBuf,
    },
    /// The file is something else.
    #[error("{path} is not a trainprof recording: name a file written by `trainprof run` or `attach` with --output", path = path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The file ends within its header.
    #[error("{path} ends at byte {offset}, within its header: nothing was recorded, or a copy stopped; copy it again or record again", path = path.display())]
    TruncatedHeader {
        /// The recording.
        path: PathBuf,
        /// Length of the file.
        offset: u64,
    },
    /// The header's checksum or content is wrong.
    #[error("{path} is damaged in its header: copy it again from where it was recorded, or record again", path = path.display())]
    CorruptedHeader {
        /// The recording.
        path: PathBuf,
    },
    /// The recording is of a format that this trainprof does not know.
    #[error("{path} was recorded with format {format}{flags} by trainprof {writer}; this trainprof reads up to format {supported}: upgrade trainprof to {writer} or later", path = path.display(), flags = with_flags(*flags))]
    NewerFormat {
        /// The recording.
        path: PathBuf,
        /// Its format version.
        format: u16,
        /// Its flags; 0 where the version alone is too new.
        flags: u16,
        /// Version of the trainprof that recorded it.
        writer: String,
        /// The newest format version that this trainprof reads.
        supported: u16,
    },
}

/// Whether all of what was recorded was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Completeness {
    /// Not known: the recording was not read to its end.
    Unread,
    /// The end mark was reached and agrees with what was read.
    Complete,
    /// As `Complete`, but bytes that are no part of the recording follow the end mark.
    CompleteButTrailed {
        /// Where they begin.
        offset: u64,
    },
    /// Records are missing at the end.
    Incomplete(Incomplete),
}

impl Completeness {
    /// Whether the recording was read to its end mark.
    pub fn is_complete(&self) -> bool {
        matches!(self, Self::Complete | Self::CompleteButTrailed { .. })
    }

    /// What a reader of a report has to know, or `None` where all is well or nothing is known yet.
    pub fn note(&self) -> Option<String> {
        match self {
            Self::Unread | Self::Complete => None,
            Self::CompleteButTrailed { offset } => Some(format!(
                "the recording is complete, but other bytes follow it from byte {offset} on: \
                 something else was written to the file; they were left out"
            )),
            Self::Incomplete(why) => Some(why.to_string()),
        }
    }
}

impl From<Incomplete> for Completeness {
    fn from(why: Incomplete) -> Self {
        Self::Incomplete(why)
    }
}

/// Why records are missing at the end of a recording. What came before is valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Incomplete {
    /// The file ends after a whole block.
    #[error(
        "the recording ends at byte {offset} with no end mark: trainprof was killed, or is still recording"
    )]
    NoEndMark {
        /// Length of the file.
        offset: u64,
    },
    /// The file ends within a block.
    #[error(
        "the recording is cut off at byte {end}, in the middle of the block at byte {offset}: trainprof was killed, the disk was full, or a copy stopped"
    )]
    CutOff {
        /// Where the block begins.
        offset: u64,
        /// Length of the file.
        end: u64,
    },
    /// A block is not as it was written.
    #[error(
        "the recording is corrupted in the block at byte {offset}: {what}; only what comes before it was read"
    )]
    Corrupted {
        /// Where the block begins.
        offset: u64,
        /// What is wrong with it.
        what: Corruption,
    },
    /// Its checksums are right, but another version of trainprof recorded something that this one does not know.
    #[error(
        "record {record} of the recording, in the block at byte {offset}, is of a kind that this trainprof ({own}) does not know: it \
         was recorded by trainprof {writer}; only what comes before it was read. Read it with trainprof {writer} or later",
        own = env!("CARGO_PKG_VERSION")
    )]
    OtherVersion {
        /// Where the block begins.
        offset: u64,
        /// The record's place in the recording, from 0.
        record: u64,
        /// Version of the trainprof that recorded it.
        writer: String,
    },
    /// The device or file system failed.
    #[error("the recording cannot be read from byte {offset} on; only what comes before was read")]
    Unreadable {
        /// Bytes read before.
        offset: u64,
    },
}

/// What is wrong with a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Corruption {
    /// Its header.
    #[error("{0}")]
    Header(BlockError),
    /// The checksum of its payload.
    #[error("the checksum of its content is wrong")]
    PayloadCrc,
    /// Its place: a block is missing, or stands twice.
    #[error("it is block {found} where block {expected} belongs")]
    Sequence {
        /// Its sequence number.
        found: u64,
        /// The sequence number that belongs here.
        expected: u64,
    },
    /// The end mark counts other records than were there.
    #[error("the end mark counts {promised} records where {read} were read")]
    RecordCount {
        /// What the end mark counts.
        promised: u64,
        /// What was read.
        read: u64,
    },
    /// Its checksums are right, but a record in it is not one that this trainprof knows.
    #[error(
        "record {record} of the recording does not decode ({source}), though the checksum is right: it was recorded by another build of trainprof"
    )]
    Undecodable {
        /// The record's place in the recording, from 0.
        record: u64,
        /// What postcard said.
        source: postcard::Error,
    },
    /// Bytes are left over after its last record.
    #[error("bytes are left over after its last record")]
    Leftover,
}

fn with_flags(flags: u16) -> String {
    match flags {
        0 => String::new(),
        flags => format!(" and flags {flags:#x}"),
    }
}

/// What to do about an error of the file.
fn cure(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => "check the path",
        io::ErrorKind::PermissionDenied => {
            "recordings are private to the user who recorded (root, under sudo): read it as that \
             user, or change its owner"
        }
        io::ErrorKind::IsADirectory => "name a file in it",
        _ => {
            "the device or the file system may have failed (see dmesg): read a copy, if there is one"
        }
    }
}
