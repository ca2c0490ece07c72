//! What kind of input and output each thread did: coarse, by thread.

use trainprof_common::op::{Class, Op};

use crate::record::fact::OpSum;

/// Counts and bytes of one thread's operations, and nanoseconds (waits included) of those on memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Activity {
    /// Successful or not.
    pub file_opens: u64,
    /// open, stat, getdents, close of files.
    pub file_meta_calls: u64,
    pub file_reads: u64,
    pub file_read_bytes: u64,
    pub file_write_bytes: u64,
    /// Files mapped, and bytes brought in by page faults on them.
    pub file_maps: u64,
    pub fault_bytes: u64,
    pub socket_read_bytes: u64,
    pub socket_write_bytes: u64,
    pub pipe_read_bytes: u64,
    pub pipe_write_bytes: u64,
    /// mmap, munmap, brk, madvise, mremap of memory.
    pub memory_ns: u64,
    pub memory_calls: u64,
}

impl Activity {
    pub(super) fn add(&mut self, sum: &OpSum) {
        let (Ok(op), Ok(class)) = (Op::try_from(sum.op), Class::try_from(sum.class)) else {
            return;
        };
        match (op, class) {
            (Op::Open, Class::File) => {
                self.file_opens += sum.count;
                self.file_meta_calls += sum.count;
            }
            (Op::Open | Op::Stat | Op::Getdents | Op::Close, Class::File | Class::Directory)
            | (Op::Open | Op::Stat, Class::Unknown) => {
                self.file_meta_calls += sum.count;
            }
            (Op::Read | Op::UringRead | Op::Copy, Class::File) => {
                self.file_reads += sum.count;
                self.file_read_bytes += sum.bytes;
            }
            (Op::Write | Op::UringWrite | Op::CopyOut, Class::File) => {
                self.file_write_bytes += sum.bytes;
            }
            (Op::Mmap, Class::File) => self.file_maps += sum.count,
            (Op::FaultFill, _) => self.fault_bytes += sum.bytes,
            (Op::Read | Op::UringRead, Class::Socket) => self.socket_read_bytes += sum.bytes,
            (Op::Write | Op::UringWrite, Class::Socket) => self.socket_write_bytes += sum.bytes,
            (Op::Read, Class::Pipe) => self.pipe_read_bytes += sum.bytes,
            (Op::Write, Class::Pipe) => self.pipe_write_bytes += sum.bytes,
            (Op::Mmap | Op::Munmap | Op::Brk | Op::Madvise | Op::Mremap, Class::Memory) => {
                self.memory_ns += sum.ns;
                self.memory_calls += sum.count;
            }
            _ => {}
        }
    }

    /// Takes what another thread did to this.
    pub fn merge(&mut self, other: &Self) {
        // Every count by its name: one that is added is not forgotten here.
        let Self {
            file_opens,
            file_meta_calls,
            file_reads,
            file_read_bytes,
            file_write_bytes,
            file_maps,
            fault_bytes,
            socket_read_bytes,
            socket_write_bytes,
            pipe_read_bytes,
            pipe_write_bytes,
            memory_ns,
            memory_calls,
        } = other;
        self.file_opens += file_opens;
        self.file_meta_calls += file_meta_calls;
        self.file_reads += file_reads;
        self.file_read_bytes += file_read_bytes;
        self.file_write_bytes += file_write_bytes;
        self.file_maps += file_maps;
        self.fault_bytes += fault_bytes;
        self.socket_read_bytes += socket_read_bytes;
        self.socket_write_bytes += socket_write_bytes;
        self.pipe_read_bytes += pipe_read_bytes;
        self.pipe_write_bytes += pipe_write_bytes;
        self.memory_ns += memory_ns;
        self.memory_calls += memory_calls;
    }

    /// Whether anything was read, from files or sockets, however little.
    pub fn any_input(&self) -> bool {
        self.file_reads + self.file_maps + self.fault_bytes + self.socket_read_bytes > 0
    }

    /// Whether data came into the job through this thread.
    pub fn takes_input(&self) -> bool {
        // As much out as in is talk between equals, such as ranks.
        let fetched = if self.socket_read_bytes > 2 * self.socket_write_bytes {
            self.socket_read_bytes
        } else {
            0
        };
        self.file_read_bytes + self.fault_bytes + fetched >= MIN_INPUT
            || self.file_opens >= MIN_OPENS && !self.writes_state() && !self.only_writes()
    }

    /// Whether files are opened to be written alone, however little: a log that is opened again for each line.
    fn only_writes(&self) -> bool {
        self.file_write_bytes > 0 && self.file_reads + self.file_maps == 0
    }

    /// Whether files are written here, and hardly anything is read from any.
    pub fn writes_state(&self) -> bool {
        let read = self.file_read_bytes + self.fault_bytes;
        self.file_write_bytes >= MIN_STATE_BYTES && self.file_write_bytes > WRITTEN * read
    }
}

/// Less than this is configuration, not training data.
const MIN_INPUT: u64 = 1 << 20;
const MIN_OPENS: u64 = 50;
/// State that is written is at least so much, and so many times what is read by who writes it.
pub const MIN_STATE_BYTES: u64 = 1 << 20;
pub const WRITTEN: u64 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_that_is_opened_for_each_line_is_no_input() {
        let reads = Activity {
            file_opens: 500,
            file_reads: 500,
            file_read_bytes: 500 * 40,
            ..Activity::default()
        };
        assert!(reads.takes_input());
        let logs = Activity {
            file_opens: 500,
            file_write_bytes: 500 * 40,
            ..Activity::default()
        };
        assert!(!logs.takes_input());
        // What is only opened may be looked at in other ways.
        let opens = Activity {
            file_opens: 500,
            ..Activity::default()
        };
        assert!(opens.takes_input());
    }
}
