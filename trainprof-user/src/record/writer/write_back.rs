//! Has the device take what was written while the watch goes on: a thread that waits for it in the writer's place.
//!
//! fdatasync(2) and not sync_file_range(2): that one writes neither the file's length nor where its new blocks lie, so that after a
//! power loss nothing of a growing file would be found.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// The thread, and what it met.
#[derive(Debug)]
pub struct WriteBack {
    /// `None`: told to end.
    asked: Option<SyncSender<()>>,
    failed: Arc<Mutex<Option<io::Error>>>,
    thread: Option<JoinHandle<()>>,
}

impl WriteBack {
    /// Starts the thread, which does `sync` whenever it is asked to, until that fails.
    pub fn start(sync: impl Fn() -> io::Result<()> + Send + 'static) -> io::Result<Self> {
        // One more may wait: what is written while the device is busy is for the next turn.
        let (asked, turns) = sync_channel(1);
        let failed = Arc::<Mutex<Option<io::Error>>>::default();
        let met = Arc::clone(&failed);
        let thread = std::thread::Builder::new()
            .name("write-back".to_owned())
            .spawn(move || serve(&turns, sync, &met))?;
        Ok(Self {
            asked: Some(asked),
            failed,
            thread: Some(thread),
        })
    }

    /// Asks for a turn, without waiting for it.
    pub fn ask(&self) {
        if let Some(asked) = &self.asked {
            // Full: a turn that has not begun covers this too. Gone: it failed, which `take_error` tells.
            let _ = asked.try_send(());
        }
    }

    /// Why a turn failed, once. The kernel tells of a failed write once for all descriptors of one opened file (fsync(2)), so nobody
    /// else learns of it.
    pub fn take_error(&self) -> Option<io::Error> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.take()
    }

    /// Waits for the turns that were asked for.
    pub fn end(&mut self) -> Option<io::Error> {
        self.asked = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        self.take_error()
    }
}

fn serve(
    turns: &Receiver<()>,
    sync: impl Fn() -> io::Result<()>,
    failed: &Mutex<Option<io::Error>>,
) {
    while turns.recv().is_ok() {
        if let Err(error) = sync() {
            *failed.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn a_busy_device_is_not_waited_for_until_the_end() {
        let (begun, has_begun) = channel();
        let (let_go, gate) = channel::<()>();
        let turns = Arc::new(AtomicU32::new(0));
        let done = Arc::clone(&turns);
        let mut back = WriteBack::start(move || {
            let _ = begun.send(());
            let _ = gate.recv();
            done.fetch_add(1, Ordering::SeqCst);
            Ok(())
        })
        .expect("a thread");
        back.ask();
        has_begun.recv().expect("a turn");
        // The device is busy: none of these waits, and one more turn covers them all.
        for _ in 0..100 {
            back.ask();
        }
        assert_eq!(turns.load(Ordering::SeqCst), 0);
        drop(let_go);
        assert!(back.end().is_none());
        assert_eq!(turns.load(Ordering::SeqCst), 2);
    }

    #[test]
    fn a_failure_is_told_once_and_ends_it() {
        let mut back =
            WriteBack::start(|| Err(io::Error::from_raw_os_error(libc::EIO))).expect("a thread");
        back.ask();
        let error = back.end().expect("it failed");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        back.ask();
        assert!(back.end().is_none());
    }
}
