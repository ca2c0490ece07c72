//! Reads a recording back, as far as it is whole.
//!
//! Total: whatever the bytes, reading ends with records that were recorded and the reason why there are
//! no more. It owns the walk over the blocks and the verdict on completeness; what a record is, the
//! caller says.

mod error;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use super::format::{
    BLOCK_HEADER_LEN, BlockError, BlockHeader, BlockKind, FILE_HEADER_FIXED_LEN, FORMAT,
    FileHeader, HeaderError, begins_block,
};

pub use error::{Completeness, Corruption, Incomplete, ReadError};

/// Reads one recording, from a file or from any other source of its bytes.
///
/// Holds one block at a time: never more memory than about twice the bytes that are there, and 32 MiB.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    name: PathBuf,
    header: FileHeader,
    /// Bytes taken from the input.
    offset: u64,
    block: Block,
    /// Sequence number that the next block has to have.
    next_sequence: u64,
    records: u64,
    completeness: Completeness,
}

/// The block being read.
#[derive(Debug, Default)]
struct Block {
    /// Where its header begins.
    offset: u64,
    payload: Vec<u8>,
    /// Bytes of the payload that are decoded.
    decoded: usize,
    /// Records that are not decoded.
    left: u32,
}

impl Reader<BufReader<File>> {
    /// Opens the recording at `path` and reads its header.
    ///
    /// # Errors
    /// [`ReadError`] when the file cannot be read, or is no recording that this trainprof reads.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadError> {
        let path = path.as_ref();
        let file = File::open(path).map_err(|source| ReadError::Io {
            operation: "open",
            path: path.to_owned(),
            offset: 0,
            source,
        })?;
        Self::new(BufReader::new(file), path)
    }
}

impl<'a> Reader<&'a [u8]> {
    /// Reads a recording that is in memory.
    ///
    /// # Errors
    /// [`ReadError`] when the bytes are no recording that this trainprof reads.
    pub fn from_bytes(bytes: &'a [u8]) -> Result<Self, ReadError> {
        Self::new(bytes, "<memory>")
    }
}

impl<R: Read> Reader<R> {
    /// Reads a recording's header from `input`; `name` stands for the path in errors. Small reads are
    /// made: give it a buffered input.
    ///
    /// # Errors
    /// [`ReadError`] when `input` fails, or is no recording that this trainprof reads.
    pub fn new(input: R, name: impl Into<PathBuf>) -> Result<Self, ReadError> {
        let mut reader = Self {
            input,
            name: name.into(),
            header: FileHeader::current(),
            offset: 0,
            block: Block::default(),
            next_sequence: 0,
            records: 0,
            completeness: Completeness::Unread,
        };
        reader.header = reader.read_file_header()?;
        Ok(reader)
    }

    /// The recording's header.
    pub fn header(&self) -> &FileHeader {
        &self.header
    }

    /// The next record; `None` after the last one that can be trusted, and ever after.
    ///
    /// Damage is no error here, since what came before it is valid:
    /// [`completeness`](Self::completeness) tells of it.
    ///
    /// `T` must be the type that was recorded, and must not nest without bound.
    ///
    /// # Errors
    /// [`ReadError::Io`], once, when the input fails.
    pub fn next_record<T: DeserializeOwned>(&mut self) -> Result<Option<T>, ReadError> {
        while self.completeness == Completeness::Unread {
            if self.block.left > 0 {
                return Ok(self.decode_record());
            }
            if self.block.decoded < self.block.payload.len() {
                self.corrupted(Corruption::Leftover);
                break;
            }
            match self.read_block() {
                Ok(Ok(())) => {}
                Ok(Err(end)) => self.completeness = end,
                Err(source) => {
                    let offset = self.offset;
                    self.completeness = Incomplete::Unreadable { offset }.into();
                    return Err(self.read_failed(source));
                }
            }
        }
        Ok(None)
    }

    /// All records that are left, as an iterator over [`next_record`](Self::next_record).
    pub fn records<T: DeserializeOwned>(&mut self) -> Records<'_, R, T> {
        Records {
            reader: self,
            record: PhantomData,
        }
    }

    /// Whether the recording is whole: [`Completeness::Unread`] until the last record was asked for.
    pub fn completeness(&self) -> &Completeness {
        &self.completeness
    }

    /// Records read so far.
    pub fn records_read(&self) -> u64 {
        self.records
    }

    /// Where the block that was read last begins, in bytes from the start of the recording.
    pub fn block_offset(&self) -> u64 {
        self.block.offset
    }

    fn read_file_header(&mut self) -> Result<FileHeader, ReadError> {
        let mut bytes = Vec::new();
        self.take(FILE_HEADER_FIXED_LEN, &mut bytes)
            .map_err(|source| self.read_failed(source))?;
        let decoded = match FileHeader::len_of(&bytes) {
            Ok(len) => {
                self.take(len - FILE_HEADER_FIXED_LEN, &mut bytes)
                    .map_err(|source| self.read_failed(source))?;
                FileHeader::decode(&bytes)
            }
            Err(error) => Err(error),
        };
        let path = || self.name.clone();
        let header = decoded.map_err(|error| match error {
            HeaderError::Empty => ReadError::Empty { path: path() },
            HeaderError::Foreign => ReadError::Foreign { path: path() },
            HeaderError::Truncated => ReadError::TruncatedHeader {
                path: path(),
                offset: self.offset,
            },
            HeaderError::Corrupted => ReadError::CorruptedHeader { path: path() },
        })?;
        // A flag that this trainprof does not know is a newer format by another name.
        if header.format > FORMAT || header.flags != 0 {
            return Err(ReadError::NewerFormat {
                path: path(),
                format: header.format,
                flags: header.flags,
                writer: header.writer,
                supported: FORMAT,
            });
        }
        Ok(header)
    }

    /// Takes the next block in. The inner result says why there is none.
    fn read_block(&mut self) -> io::Result<Result<(), Completeness>> {
        let offset = self.offset;
        let damage = |what| Ok(Err(Incomplete::Corrupted { offset, what }.into()));
        self.block = Block {
            offset,
            payload: std::mem::take(&mut self.block.payload),
            ..Block::default()
        };
        self.block.payload.clear();

        let mut bytes = Vec::with_capacity(BLOCK_HEADER_LEN);
        self.take(BLOCK_HEADER_LEN, &mut bytes)?;
        if bytes.is_empty() {
            return Ok(Err(Incomplete::NoEndMark { offset }.into()));
        }
        if !begins_block(&bytes) {
            return damage(Corruption::Header(BlockError::Sync));
        }
        let cut_off = |end| Ok(Err(Incomplete::CutOff { offset, end }.into()));
        let Ok(bytes) = bytes.as_slice().try_into() else {
            return cut_off(self.offset);
        };
        let header = match BlockHeader::decode(bytes) {
            Ok(header) => header,
            Err(error) => return damage(Corruption::Header(error)),
        };
        if header.sequence != self.next_sequence {
            return damage(Corruption::Sequence {
                found: header.sequence,
                expected: self.next_sequence,
            });
        }

        let payload_len = header.payload_len as usize;
        let mut payload = std::mem::take(&mut self.block.payload);
        self.take(payload_len, &mut payload)?;
        if payload.len() < payload_len {
            return cut_off(self.offset);
        }
        if crc32fast::hash(&payload) != header.payload_crc {
            return damage(Corruption::PayloadCrc);
        }
        self.next_sequence += 1;
        match header.kind {
            BlockKind::Records => {
                self.block.payload = payload;
                self.block.left = header.record_count;
                Ok(Ok(()))
            }
            BlockKind::End => {
                let Ok(promised) = payload.as_slice().try_into().map(u64::from_le_bytes) else {
                    return damage(Corruption::Header(BlockError::Content));
                };
                if promised != self.records {
                    return damage(Corruption::RecordCount {
                        promised,
                        read: self.records,
                    });
                }
                let offset = self.offset;
                let trailing = self.take(1, &mut payload)? > 0;
                Ok(Err(if trailing {
                    Completeness::CompleteButTrailed { offset }
                } else {
                    Completeness::Complete
                }))
            }
        }
    }

    fn decode_record<T: DeserializeOwned>(&mut self) -> Option<T> {
        let rest = &self.block.payload[self.block.decoded..];
        match postcard::take_from_bytes(rest) {
            Ok((record, rest)) => {
                self.block.decoded = self.block.payload.len() - rest.len();
                self.block.left -= 1;
                self.records += 1;
                Some(record)
            }
            Err(source) => {
                let writer = &self.header.writer;
                let record = self.records;
                self.completeness = if writer == env!("CARGO_PKG_VERSION") {
                    let offset = self.block.offset;
                    let what = Corruption::Undecodable { record, source };
                    Incomplete::Corrupted { offset, what }.into()
                } else {
                    Incomplete::OtherVersion {
                        offset: self.block.offset,
                        record,
                        writer: writer.clone(),
                    }
                    .into()
                };
                None
            }
        }
    }

    fn corrupted(&mut self, what: Corruption) {
        let offset = self.block.offset;
        self.completeness = Incomplete::Corrupted { offset, what }.into();
    }

    /// Appends up to `len` bytes of the input to `bytes`; fewer only where it ends. Memory grows with
    /// what is there, not with what a header claims.
    fn take(&mut self, len: usize, bytes: &mut Vec<u8>) -> io::Result<usize> {
        let before = bytes.len();
        let taken = self.input.by_ref().take(len as u64).read_to_end(bytes);
        self.offset += (bytes.len() - before) as u64;
        taken
    }

    fn read_failed(&self, source: io::Error) -> ReadError {
        ReadError::Io {
            operation: "read",
            path: self.name.clone(),
            offset: self.offset,
            source,
        }
    }
}

/// The records of a [`Reader`], in the order in which they were recorded.
#[derive(Debug)]
pub struct Records<'a, R, T> {
    reader: &'a mut Reader<R>,
    record: PhantomData<fn() -> T>,
}

impl<R: Read, T: DeserializeOwned> Iterator for Records<'_, R, T> {
    type Item = Result<T, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.reader.next_record().transpose()
    }
}
