//! Signals: Ctrl-C ends a watch, never a job; a launcher passes them on to its command.

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;

/// The signals that we listen to.
pub struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    quit: Signal,
    /// Those that mean nothing to us, for a command that we launched.
    passed_on: Option<[Signal; 2]>,
    child: Signal,
}

/// What arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A signal with this number that asks to end, or that the command should get.
    Signal(i32),
    /// A child changed its state.
    Child,
}

impl Signals {
    /// For watching what belongs to others.
    pub fn for_watch() -> Result<Self, Failure> {
        Self::listen(false)
    }

    /// For a command of our own.
    pub fn for_launcher() -> Result<Self, Failure> {
        Self::listen(true)
    }

    fn listen(launcher: bool) -> Result<Self, Failure> {
        let on = |kind| {
            signal(kind)
                .map_err(|error| Failure::host(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hangup: on(SignalKind::hangup())?,
            quit: on(SignalKind::quit())?,
            passed_on: if launcher {
                Some([
                    on(SignalKind::user_defined1())?,
                    on(SignalKind::user_defined2())?,
                ])
            } else {
                None
            },
            child: on(SignalKind::child())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Event {
        let [user1, user2] = match &mut self.passed_on {
            Some([one, two]) => [Some(one), Some(two)],
            None => [None, None],
        };
        tokio::select! {
            _ = self.interrupt.recv() => Event::Signal(libc::SIGINT),
            _ = self.terminate.recv() => Event::Signal(libc::SIGTERM),
            _ = self.hangup.recv() => Event::Signal(libc::SIGHUP),
            _ = self.quit.recv() => Event::Signal(libc::SIGQUIT),
            () = received(user1) => Event::Signal(libc::SIGUSR1),
            () = received(user2) => Event::Signal(libc::SIGUSR2),
            _ = self.child.recv() => Event::Child,
        }
    }
}

async fn received(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => {
            signal.recv().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether the terminal itself sends this signal to everybody in our process group, so that a child of ours
/// has it already (termios(3), tcgetpgrp(3)).
pub fn terminal_tells_all(signal: i32) -> bool {
    let from_keyboard = signal == libc::SIGINT || signal == libc::SIGQUIT;
    // SAFETY: both calls only ask.
    from_keyboard && unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() }
}
