//! Signals: Ctrl-C ends a watch, never a job; a launcher passes them on to its command.

use std::{future::poll_fn, task::Poll};

use tokio::signal::unix::{Signal, SignalKind, signal};

use super::Failure;

/// Those that ask to end.
const ENDING: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];
/// Those that mean nothing to us, for a command that we launched; the real-time ones come to them. Left out are what stops and
/// continues (both of us have it from a terminal), what tells of an own mistake, and SIGPIPE, which belongs to what was written.
const PASSED_ON: [i32; 9] = [
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGVTALRM,
    libc::SIGPROF,
    libc::SIGIO,
    libc::SIGURG,
    libc::SIGWINCH,
    libc::SIGPWR,
];

/// The signals that we listen to.
pub struct Signals {
    /// With their numbers, in the order in which they are asked for.
    told: Vec<(i32, Signal)>,
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
        Self::listen(ENDING.to_vec())
    }

    /// For a command of our own.
    pub fn for_launcher() -> Result<Self, Failure> {
        let real_time = libc::SIGRTMIN()..=libc::SIGRTMAX();
        Self::listen(
            ENDING
                .into_iter()
                .chain(PASSED_ON)
                .chain(real_time)
                .collect(),
        )
    }

    fn listen(numbers: Vec<i32>) -> Result<Self, Failure> {
        let on = |kind| {
            signal(kind)
                .map_err(|error| Failure::host(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            told: numbers
                .into_iter()
                .map(|number| Ok((number, on(SignalKind::from_raw(number))?)))
                .collect::<Result<_, Failure>>()?,
            child: on(SignalKind::child())?,
        })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) -> Event {
        poll_fn(|context| {
            for (number, signal) in &mut self.told {
                if signal.poll_recv(context).is_ready() {
                    return Poll::Ready(Event::Signal(*number));
                }
            }
            self.child.poll_recv(context).map(|_| Event::Child)
        })
        .await
    }
}

/// Whether the terminal itself sends this signal to everybody in our process group, so that a child of ours
/// has it already (termios(3), tcgetpgrp(3)).
pub fn terminal_tells_all(signal: i32) -> bool {
    let from_terminal = matches!(signal, libc::SIGINT | libc::SIGQUIT | libc::SIGWINCH);
    // SAFETY: both calls only ask.
    from_terminal && unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() }
}
