//! The bytes of a recording: the file header and the header in front of each block.
//!
//! ```text
//! file header   magic[8] | format u16 | flags u16 | n u8 | writer[n] | crc32 u32
//! block         sync[4] | kind u16 | reserved u16 | payload length u32 | record count u32
//!               | sequence u64 | crc32 of payload u32 | crc32 of the 28 bytes before u32 | payload
//! ```
//!
//! All integers are little endian. A records block's payload is its records, postcard-encoded, back to
//! back. The end block's payload is the number of records in the whole recording, as a u64; it is
//! written last, so a recording without it was cut short.
//!
//! The block header has a checksum of its own so that a damaged length is known for damage before
//! anything is read by it; through the payload's checksum it covers the payload too.
//!
//! The file header keeps its layout in every format version, so that a reader of an older version can
//! still say which trainprof wrote the file. This module owns layout and limits; it knows nothing of
//! files or of what a record is.

/// First bytes of every recording. Not text, and broken by a transfer that rewrites line ends.
pub const MAGIC: [u8; 8] = *b"\x89TPR\r\n\x1a\n";

/// The format version that this trainprof writes, and the newest that it reads. Versions start at 1.
pub const FORMAT: u16 = 1;

/// First bytes of every block.
pub const SYNC: [u8; 4] = *b"\xb1TPb";

/// Bytes of a block header.
pub const BLOCK_HEADER_LEN: usize = 32;

/// Bytes of payload at which the writer closes a block.
pub const BLOCK_TARGET_LEN: usize = 64 * 1024;

/// Most bytes of payload in a block. A longer claim is damage.
pub const MAX_PAYLOAD_LEN: usize = 16 * 1024 * 1024;

/// Most bytes of one encoded record: always fits into a block that has not reached its target length.
pub const MAX_RECORD_LEN: usize = MAX_PAYLOAD_LEN - BLOCK_TARGET_LEN;

/// Bytes of the end block's payload.
pub const END_PAYLOAD_LEN: usize = 8;

/// Bytes of the file header up to and including the length of the writer's version.
pub const FILE_HEADER_FIXED_LEN: usize = 13;

const CRC_LEN: usize = 4;

/// The file header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHeader {
    /// Format version, from 1.
    pub format: u16,
    /// Properties that a reader must know to read on. None exists yet: always 0.
    pub flags: u16,
    /// Version of the trainprof that recorded: at most 255 printable ASCII characters.
    pub writer: String,
}

/// Why bytes are no file header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// There are no bytes.
    #[error("there is nothing in it")]
    Empty,
    /// The bytes do not begin as a recording does.
    #[error("it does not begin as a recording does")]
    Foreign,
    /// The bytes end before the header does.
    #[error("it ends within its header")]
    Truncated,
    /// The header's checksum or content is wrong.
    #[error("its header is damaged")]
    Corrupted,
}

impl FileHeader {
    /// The header that this trainprof writes.
    pub fn current() -> Self {
        Self {
            format: FORMAT,
            flags: 0,
            writer: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The header's bytes. Of `writer`, the first 255 bytes are kept.
    pub fn encode(&self) -> Vec<u8> {
        let writer = self.writer.as_bytes();
        let len = u8::try_from(writer.len()).unwrap_or(u8::MAX);
        let mut bytes = Vec::with_capacity(Self::total_len(len));
        bytes.extend(MAGIC);
        bytes.extend(self.format.to_le_bytes());
        bytes.extend(self.flags.to_le_bytes());
        bytes.push(len);
        bytes.extend(&writer[..usize::from(len)]);
        let crc = crc32fast::hash(&bytes);
        bytes.extend(crc.to_le_bytes());
        bytes
    }

    /// Bytes of the whole header, by its first [`FILE_HEADER_FIXED_LEN`] bytes.
    ///
    /// # Errors
    /// [`HeaderError`] when these are too few or do not begin a recording.
    pub fn len_of(fixed: &[u8]) -> Result<usize, HeaderError> {
        if fixed.is_empty() {
            return Err(HeaderError::Empty);
        }
        let magic = &fixed[..fixed.len().min(MAGIC.len())];
        if !MAGIC.starts_with(magic) {
            return Err(HeaderError::Foreign);
        }
        let writer_len = fixed
            .get(FILE_HEADER_FIXED_LEN - 1)
            .ok_or(HeaderError::Truncated)?;
        Ok(Self::total_len(*writer_len))
    }

    /// Decodes the header at the start of `bytes`; what follows it is not looked at.
    ///
    /// A newer format version is no error here: the caller decides, with the writer's version at hand.
    ///
    /// # Errors
    /// [`HeaderError`] says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let len = Self::len_of(bytes)?;
        let header = bytes.get(..len).ok_or(HeaderError::Truncated)?;
        let (covered, _) = header.split_at(len - CRC_LEN);
        let writer = &covered[FILE_HEADER_FIXED_LEN..];
        let format = u16::from_le_bytes(array(header, 8));
        // The writer's version is shown on terminals: nothing but printable characters may pass.
        let printable = writer.iter().all(|b| b.is_ascii_graphic() || *b == b' ');
        let crc = u32::from_le_bytes(array(header, len - CRC_LEN));
        if crc != crc32fast::hash(covered) || !printable || format == 0 {
            return Err(HeaderError::Corrupted);
        }
        Ok(Self {
            format,
            flags: u16::from_le_bytes(array(header, 10)),
            writer: String::from_utf8_lossy(writer).into_owned(),
        })
    }

    fn total_len(writer_len: u8) -> usize {
        FILE_HEADER_FIXED_LEN + usize::from(writer_len) + CRC_LEN
    }
}

/// What a block holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockKind {
    /// Records.
    Records,
    /// The mark that the recording is complete.
    End,
}

impl BlockKind {
    fn code(self) -> u16 {
        match self {
            Self::Records => 1,
            Self::End => 2,
        }
    }
}

impl TryFrom<u16> for BlockKind {
    type Error = BlockError;

    fn try_from(code: u16) -> Result<Self, BlockError> {
        match code {
            1 => Ok(Self::Records),
            2 => Ok(Self::End),
            _ => Err(BlockError::Content),
        }
    }
}

/// The header in front of each block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockHeader {
    /// What the block holds.
    pub kind: BlockKind,
    /// Bytes of payload after the header: at most [`MAX_PAYLOAD_LEN`].
    pub payload_len: u32,
    /// Records in the payload: at most one for each byte of it; 0 in the end block.
    pub record_count: u32,
    /// Place of the block in the recording, from 0.
    pub sequence: u64,
    /// Checksum of the payload.
    pub payload_crc: u32,
}

/// Why bytes are no block header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// No block begins here.
    #[error("no block begins there")]
    Sync,
    /// The header's checksum is wrong.
    #[error("the checksum of the block's header is wrong")]
    HeaderCrc,
    /// The checksum is right, and the header still says what no writer of this version says.
    #[error("the block's header makes no sense")]
    Content,
}

impl BlockHeader {
    /// The header of a block with this payload, or `None` when the payload is over [`MAX_PAYLOAD_LEN`].
    pub fn of(kind: BlockKind, sequence: u64, record_count: u32, payload: &[u8]) -> Option<Self> {
        if payload.len() > MAX_PAYLOAD_LEN {
            return None;
        }
        Some(Self {
            kind,
            payload_len: u32::try_from(payload.len()).ok()?,
            record_count,
            sequence,
            payload_crc: crc32fast::hash(payload),
        })
    }

    /// The header's bytes.
    pub fn encode(&self) -> [u8; BLOCK_HEADER_LEN] {
        let mut bytes = [0; BLOCK_HEADER_LEN];
        bytes[..4].copy_from_slice(&SYNC);
        bytes[4..6].copy_from_slice(&self.kind.code().to_le_bytes());
        bytes[8..12].copy_from_slice(&self.payload_len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.record_count.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..28]);
        bytes[28..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header. The limits on lengths and counts hold for what it returns.
    ///
    /// # Errors
    /// [`BlockError`] says what is wrong with the bytes.
    pub fn decode(bytes: &[u8; BLOCK_HEADER_LEN]) -> Result<Self, BlockError> {
        if !begins_block(bytes) {
            return Err(BlockError::Sync);
        }
        if u32::from_le_bytes(array(bytes, 28)) != crc32fast::hash(&bytes[..28]) {
            return Err(BlockError::HeaderCrc);
        }
        let header = Self {
            kind: BlockKind::try_from(u16::from_le_bytes(array(bytes, 4)))?,
            payload_len: u32::from_le_bytes(array(bytes, 8)),
            record_count: u32::from_le_bytes(array(bytes, 12)),
            sequence: u64::from_le_bytes(array(bytes, 16)),
            payload_crc: u32::from_le_bytes(array(bytes, 24)),
        };
        let payload_len = header.payload_len as usize;
        let fits = match header.kind {
            BlockKind::Records => {
                payload_len <= MAX_PAYLOAD_LEN && header.record_count <= header.payload_len
            }
            BlockKind::End => payload_len == END_PAYLOAD_LEN && header.record_count == 0,
        };
        if !fits || u16::from_le_bytes(array(bytes, 6)) != 0 {
            return Err(BlockError::Content);
        }
        Ok(header)
    }
}

/// Whether `bytes`, or as many as there are of them, begin as a block does.
pub fn begins_block(bytes: &[u8]) -> bool {
    SYNC.starts_with(&bytes[..bytes.len().min(SYNC.len())])
}

/// The `N` bytes at `at`. Callers have checked the length.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resealed(mut bytes: Vec<u8>, edit: impl Fn(&mut [u8])) -> Vec<u8> {
        edit(&mut bytes);
        let at = bytes.len() - CRC_LEN;
        let crc = crc32fast::hash(&bytes[..at]);
        bytes[at..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    #[test]
    fn file_headers_decode_or_say_why_not() {
        let good = FileHeader::current().encode();
        let cases: &[(&str, Vec<u8>, Result<FileHeader, HeaderError>)] = &[
            ("current", good.clone(), Ok(FileHeader::current())),
            (
                "more bytes after it",
                [good.as_slice(), b"rest"].concat(),
                Ok(FileHeader::current()),
            ),
            ("empty", vec![], Err(HeaderError::Empty)),
            (
                "ELF",
                b"\x7fELF\x02\x01".to_vec(),
                Err(HeaderError::Foreign),
            ),
            (
                "line ends rewritten",
                b"\x89TPR\n\x1a\n\x01\x00\x00\x00\x00".to_vec(),
                Err(HeaderError::Foreign),
            ),
            (
                "part of the magic",
                MAGIC[..3].to_vec(),
                Err(HeaderError::Truncated),
            ),
            (
                "no checksum",
                good[..good.len() - 1].to_vec(),
                Err(HeaderError::Truncated),
            ),
            (
                "format 0",
                resealed(good.clone(), |b| b[8] = 0),
                Err(HeaderError::Corrupted),
            ),
            (
                "escape sequence",
                resealed(good.clone(), |b| b[FILE_HEADER_FIXED_LEN] = 0x1b),
                Err(HeaderError::Corrupted),
            ),
        ];
        for (name, bytes, expected) in cases {
            assert_eq!(&FileHeader::decode(bytes), expected, "{name}");
        }
    }

    #[test]
    fn a_newer_file_header_still_names_its_writer() {
        let newer = FileHeader {
            format: 7,
            flags: 3,
            writer: "9.1.0-rc 2".to_owned(),
        };
        assert_eq!(FileHeader::decode(&newer.encode()), Ok(newer));
    }

    #[test]
    fn an_overlong_writer_is_cut() {
        let long = FileHeader {
            writer: "v".repeat(300),
            ..FileHeader::current()
        };
        let decoded = FileHeader::decode(&long.encode()).expect("a valid header");
        assert_eq!(decoded.writer.len(), 255);
    }

    #[test]
    fn block_headers_decode_or_say_why_not() {
        let records = BlockHeader::of(BlockKind::Records, 5, 2, b"abc").expect("fits");
        let end = BlockHeader::of(BlockKind::End, 6, 0, &[0; END_PAYLOAD_LEN]).expect("fits");
        let edit = |header: BlockHeader, at: usize, value: u8| {
            resealed(header.encode().to_vec(), |b| b[at] = value)
        };
        let cases = [
            ("records", records.encode().to_vec(), Ok(records)),
            ("end", end.encode().to_vec(), Ok(end)),
            ("sync", edit(records, 0, 0), Err(BlockError::Sync)),
            ("zeros", vec![0; BLOCK_HEADER_LEN], Err(BlockError::Sync)),
            (
                "unknown kind",
                edit(records, 4, 9),
                Err(BlockError::Content),
            ),
            ("reserved", edit(records, 7, 1), Err(BlockError::Content)),
            ("too long", edit(records, 11, 2), Err(BlockError::Content)),
            (
                "more records than bytes",
                edit(records, 12, 4),
                Err(BlockError::Content),
            ),
            (
                "end with records",
                edit(end, 12, 1),
                Err(BlockError::Content),
            ),
            ("short end", edit(end, 8, 7), Err(BlockError::Content)),
        ];
        for (name, bytes, expected) in cases {
            let bytes = bytes.try_into().expect("a header's length");
            assert_eq!(BlockHeader::decode(&bytes), expected, "{name}");
        }
        let mut flipped = records.encode();
        flipped[9] ^= 1;
        assert_eq!(BlockHeader::decode(&flipped), Err(BlockError::HeaderCrc));
    }

    #[test]
    fn a_payload_over_the_limit_has_no_header() {
        let payload = vec![0; MAX_PAYLOAD_LEN + 1];
        assert_eq!(BlockHeader::of(BlockKind::Records, 0, 1, &payload), None);
    }
}
