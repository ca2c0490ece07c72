//! Writes a recording, whole block after whole block.
//!
//! Owns the block being filled and what happens when the disk says no; it does not know what a record
//! is, and has no clock: when to flush and to sync is the caller's choice.
//!
//! A recording must stay readable whatever ends it. So each block goes out in one write, nothing that
//! is in the file is written again, and after a failed write the file is cut back to its last whole
//! block.

mod create;
mod error;
mod write_back;

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use postcard::ser_flavors::Flavor;
use serde::Serialize;

use super::format::{
    BLOCK_HEADER_LEN, BLOCK_TARGET_LEN, BlockHeader, BlockKind, FileHeader, MAX_RECORD_LEN,
};

pub use error::WriteError;
use write_back::WriteBack;

/// What a finished recording holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Summary {
    /// Records written.
    pub records: u64,
    /// Blocks written, without the end block.
    pub blocks: u64,
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// Writes one recording.
///
/// The first error of the file (full disk, quota, failed device) is returned by the call that meets it.
/// From then on the writer has failed: it drops and counts what it is given, at no cost, so that the
/// watch goes on; [`failure`](Self::failure) says why, and [`finish`](Self::finish) returns that error
/// again.
///
/// It buffers no more than one block: 64 KiB and one record.
///
/// A writer that is dropped writes out the block being filled, but no end mark: the recording stays
/// incomplete.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    file: File,
    /// The block being filled: room for its header, then the payload.
    block: Vec<u8>,
    block_records: u32,
    /// Written so far, in whole blocks.
    written: Summary,
    lost: u64,
    failure: Option<WriteError>,
    finished: bool,
    /// Begins with the first [`write_back`](Self::write_back): processes of ours are forked before.
    back: Option<WriteBack>,
}

impl Writer {
    /// Creates the recording at `path`, mode 0600 whatever the umask, and writes its header.
    ///
    /// A regular file at `path` is truncated. The file is locked (flock) as long as the writer lives,
    /// so that a second recorder does not truncate it meanwhile.
    ///
    /// # Errors
    /// When the file cannot be created, locked or written, is being recorded to, is a symbolic link,
    /// or is anything but a regular file. Nothing that stands there is truncated in the last three cases.
    pub fn create(path: impl AsRef<Path>) -> Result<Self, WriteError> {
        let path = path.as_ref().to_owned();
        let file = create::recording_file(&path)?;
        Self::start(file, path)
    }

    fn start(file: File, path: PathBuf) -> Result<Self, WriteError> {
        let mut writer = Self {
            path,
            file,
            block: Vec::with_capacity(BLOCK_HEADER_LEN + BLOCK_TARGET_LEN),
            block_records: 0,
            written: Summary {
                records: 0,
                blocks: 0,
                bytes: 0,
            },
            lost: 0,
            failure: None,
            finished: false,
            back: None,
        };
        let header = FileHeader::current().encode();
        match writer.file.write_all(&header) {
            Ok(()) => writer.written.bytes = header.len() as u64,
            Err(source) => return Err(writer.fail("write", source)),
        }
        writer.start_block();
        Ok(writer)
    }

    /// Adds a record, and writes the block once it holds 64 KiB.
    ///
    /// # Errors
    /// [`WriteError::Record`] when this one record cannot be stored (over
    /// [`MAX_RECORD_LEN`], or its `Serialize` fails); the recording goes on without it.
    /// [`WriteError::Io`] when writing the block failed, once; see [`Writer`].
    pub fn push<T: Serialize + ?Sized>(&mut self, record: &T) -> Result<(), WriteError> {
        if self.failure.is_some() {
            self.lost += 1;
            return Ok(());
        }
        let start = self.block.len();
        let encoding = Encoding {
            limit: start + MAX_RECORD_LEN,
            bytes: &mut self.block,
        };
        let reason = match postcard::serialize_with_flavor(record, encoding) {
            Ok(()) if self.block.len() > start => None,
            // The reader takes no more records from a block than it has bytes.
            Ok(()) => Some("it takes no bytes".to_owned()),
            Err(postcard::Error::SerializeBufferFull) => {
                Some(format!("it takes more than {MAX_RECORD_LEN} bytes"))
            }
            Err(error) => Some(error.to_string()),
        };
        if let Some(reason) = reason {
            self.block.truncate(start);
            self.lost += 1;
            return Err(WriteError::Record {
                path: self.path.clone(),
                reason,
            });
        }
        self.block_records += 1;
        if self.block.len() >= BLOCK_HEADER_LEN + BLOCK_TARGET_LEN {
            self.flush_block()?;
        }
        Ok(())
    }

    /// Writes the block being filled, so that all records pushed so far outlive this process (though
    /// not a power loss: that is [`sync`](Self::sync)). Does nothing when there are none.
    ///
    /// # Errors
    /// [`WriteError::Io`] when writing failed, once; see [`Writer`].
    pub fn flush_block(&mut self) -> Result<(), WriteError> {
        if self.block_records == 0 || self.failure.is_some() {
            return Ok(());
        }
        let records = self.block_records;
        self.write_block(BlockKind::Records)?;
        self.written.records += u64::from(records);
        self.written.blocks += 1;
        Ok(())
    }

    /// Writes the block being filled and has the device take all of the recording, on a thread of its own: a power loss later than
    /// that leaves it readable up to there. Never waits for the device.
    ///
    /// # Errors
    /// [`WriteError::Io`] when writing failed, or when the device could not take what was written before, once; see [`Writer`].
    pub fn write_back(&mut self) -> Result<(), WriteError> {
        self.flush_block()?;
        if self.failure.is_some() {
            return Ok(());
        }
        if self.back.is_none() {
            let file = self.file.try_clone();
            let back = file.and_then(|file| WriteBack::start(move || file.sync_data()));
            self.back = Some(back.map_err(|source| self.fail("sync", source))?);
        }
        let Some(back) = &self.back else {
            return Ok(());
        };
        match back.take_error() {
            Some(source) => Err(self.fail("sync", source)),
            None => {
                back.ask();
                Ok(())
            }
        }
    }

    /// Writes the block being filled and waits until the device holds all of the recording. May take
    /// as long as the device likes (seconds, when others write too): never call it where events wait.
    ///
    /// # Errors
    /// [`WriteError::Io`] when writing or syncing failed, once; see [`Writer`].
    pub fn sync(&mut self) -> Result<(), WriteError> {
        self.flush_block()?;
        if self.failure.is_some() {
            return Ok(());
        }
        // After a failed sync the kernel may have dropped the pages that it could not write (fsync(2),
        // NOTES): a second try would succeed and mean nothing. So the writer has failed.
        self.file
            .sync_data()
            .map_err(|source| self.fail("sync", source))
    }

    /// Completes the recording: the last records, the end mark, a sync.
    ///
    /// # Errors
    /// [`WriteError::Io`] when that failed, or when the writer had failed before.
    pub fn finish(mut self) -> Result<Summary, WriteError> {
        self.finished = true;
        self.flush_block()?;
        if let Some(source) = self.back.as_mut().and_then(WriteBack::end)
            && self.failure.is_none()
        {
            return Err(self.fail("sync", source));
        }
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.block
            .extend_from_slice(&self.written.records.to_le_bytes());
        self.write_block(BlockKind::End)?;
        self.sync()?;
        Ok(self.written)
    }

    /// Where the recording is written to.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Why the recording ended before its time, if it did.
    pub fn failure(&self) -> Option<&WriteError> {
        self.failure.as_ref()
    }

    /// What is in the file, in whole blocks. Records still in the block being filled are not in it.
    pub fn written(&self) -> Summary {
        self.written
    }

    /// Records that were pushed and are not, and never will be, in the file.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn start_block(&mut self) {
        self.block.clear();
        // One huge record must not pin its memory for the rest of the watch.
        self.block
            .shrink_to(BLOCK_HEADER_LEN + 2 * BLOCK_TARGET_LEN);
        self.block.resize(BLOCK_HEADER_LEN, 0);
        self.block_records = 0;
    }

    fn write_block(&mut self, kind: BlockKind) -> Result<(), WriteError> {
        let sequence = self.written.blocks;
        let (header, payload) = self.block.split_at_mut(BLOCK_HEADER_LEN);
        let sealed = BlockHeader::of(kind, sequence, self.block_records, payload)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EFBIG))
            .map(|sealed| header.copy_from_slice(&sealed.encode()));
        // A regular file takes it all in one write(2); what goes on after a short one gets the reason
        // from the kernel, such as the disk being full.
        match sealed.and_then(|()| self.file.write_all(&self.block)) {
            Ok(()) => {
                self.written.bytes += self.block.len() as u64;
                self.start_block();
                Ok(())
            }
            Err(source) => Err(self.fail("write", source)),
        }
    }

    /// Enters the failed state.
    fn fail(&mut self, operation: &'static str, source: io::Error) -> WriteError {
        // Best effort: a reader copes with a partial block at the end, and says so.
        let _ = self.file.set_len(self.written.bytes);
        self.lost += u64::from(self.block_records);
        self.block_records = 0;
        self.block = Vec::new();
        let error = WriteError::Io {
            operation,
            path: self.path.clone(),
            offset: self.written.bytes,
            source: Arc::new(source),
        };
        self.failure = Some(error.clone());
        error
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if !self.finished {
            // Nobody is left to tell: the missing end mark says it.
            let _ = self.flush_block();
        }
    }
}

/// Appends postcard's bytes up to a limit, so that no record takes unbounded memory.
struct Encoding<'a> {
    bytes: &'a mut Vec<u8>,
    limit: usize,
}

impl Flavor for Encoding<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.try_extend(&[byte])
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        if bytes.len() > self.limit - self.bytes.len() {
            return Err(postcard::Error::SerializeBufferFull);
        }
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::super::{Completeness, Reader};
    use super::*;

    /// A writer on a device that refuses every write and cannot be truncated.
    fn on_full_device() -> Writer {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut writer = Writer::create(dir.path().join("rec")).expect("created");
        writer.file = OpenOptions::new()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full");
        writer
    }

    #[test]
    fn a_failed_writer_reports_once_then_drops_and_counts() {
        let mut writer = on_full_device();
        writer.push(&1u32).expect("buffered");
        writer.push(&2u32).expect("buffered");
        let error = writer.flush_block().expect_err("the device is full");
        assert!(
            matches!(&error, WriteError::Io { source, .. } if source.raw_os_error() == Some(libc::ENOSPC))
        );
        for _ in 0..100_000 {
            writer.push(&3u32).expect("a no-op");
        }
        writer.flush_block().expect("a no-op");
        writer.sync().expect("a no-op");
        assert_eq!(writer.lost(), 100_002);
        assert_eq!(writer.written().records, 0);
        assert_eq!(writer.block.capacity(), 0);
        assert_eq!(
            writer.failure().map(ToString::to_string),
            Some(error.to_string())
        );
        let last = writer.finish().expect_err("still failed");
        assert_eq!(last.to_string(), error.to_string());
    }

    /// A writer on a device that takes every write and cannot sync.
    fn on_device_without_sync() -> Writer {
        let mut writer = on_full_device();
        writer.file = OpenOptions::new()
            .write(true)
            .open("/dev/null")
            .expect("/dev/null");
        writer
    }

    #[test]
    fn a_device_that_did_not_take_the_recording_ends_it() {
        let mut writer = on_device_without_sync();
        writer.push(&1u32).expect("buffered");
        writer.write_back().expect("asked");
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let error = loop {
            match writer.write_back() {
                Err(error) => break error,
                Ok(()) => assert!(std::time::Instant::now() < until, "nothing was synced"),
            }
        };
        assert!(
            matches!(
                &error,
                WriteError::Io {
                    operation: "sync",
                    ..
                }
            ),
            "{error}"
        );
        writer.write_back().expect("a no-op");
        let last = writer.finish().expect_err("still failed");
        assert_eq!(last.to_string(), error.to_string());
    }

    #[test]
    fn the_end_tells_what_the_device_did_not_take() {
        let mut writer = on_device_without_sync();
        writer.write_back().expect("asked");
        // What fails first is that, not the sync of the end itself.
        let error = writer.finish().expect_err("it did not sync");
        assert!(
            matches!(&error, WriteError::Io { operation: "sync", offset, .. } if *offset < 100)
        );
    }

    #[test]
    fn a_block_is_written_at_its_target_length() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut writer = Writer::create(dir.path().join("rec")).expect("created");
        let kib = vec![7u8; 1022]; // and 2 bytes of length
        for _ in 0..63 {
            writer.push(&kib).expect("buffered");
        }
        assert_eq!(writer.written().blocks, 0);
        writer.push(&kib).expect("written");
        assert_eq!(writer.written().blocks, 1);
        assert_eq!(writer.written().records, 64);
        assert_eq!(writer.block.len(), BLOCK_HEADER_LEN);
    }

    #[test]
    fn a_record_that_cannot_be_stored_is_refused_alone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("rec");
        let mut writer = Writer::create(&path).expect("created");
        writer.push("before").expect("buffered");
        let huge = "x".repeat(MAX_RECORD_LEN);
        for refused in [writer.push(&huge), writer.push(&())] {
            assert!(matches!(refused, Err(WriteError::Record { .. })));
        }
        writer.push("after").expect("buffered");
        assert_eq!(writer.lost(), 2);
        assert_eq!(writer.finish().expect("finished").records, 2);
        let mut reader = Reader::open(&path).expect("a recording");
        let records: Result<Vec<String>, _> = reader.records().collect();
        assert_eq!(records.expect("readable"), ["before", "after"]);
    }

    #[test]
    fn the_largest_record_fits_behind_an_almost_full_block_and_gives_its_memory_back() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("rec");
        let mut writer = Writer::create(&path).expect("created");
        let filler = "x".repeat(BLOCK_TARGET_LEN - 4); // and 3 bytes of length
        let huge = "y".repeat(MAX_RECORD_LEN - 4); // and 4 bytes of length
        writer.push(&filler).expect("buffered");
        assert_eq!(writer.written().blocks, 0);
        writer.push(&huge).expect("written");
        assert_eq!(writer.written().blocks, 1);
        assert!(writer.block.capacity() <= BLOCK_HEADER_LEN + 2 * BLOCK_TARGET_LEN);
        writer.finish().expect("finished");
        let mut reader = Reader::open(&path).expect("a recording");
        let records: Result<Vec<String>, _> = reader.records().collect();
        assert!(records.expect("readable") == [filler, huge]);
        assert_eq!(reader.completeness(), &Completeness::Complete);
    }

    #[test]
    fn a_dropped_writer_keeps_its_records_but_marks_no_end() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("rec");
        let mut writer = Writer::create(&path).expect("created");
        writer.push(&5u8).expect("buffered");
        drop(writer);
        let mut reader = Reader::open(&path).expect("a recording");
        let records: Result<Vec<u8>, _> = reader.records().collect();
        assert_eq!(records.expect("readable"), [5]);
        assert!(!reader.completeness().is_complete());
    }
}
