//! Signals: Ctrl-C ends a watch, never a job; a launcher passes them on to its command.

use std::{
    future::poll_fn,
    sync::atomic::{AtomicU32, Ordering},
    task::Poll,
};

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
        note_senders()?;
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

/// Signals that a terminal sends to everybody in the process group in its foreground (termios(3), ioctl_tty(2)).
const OF_TERMINALS: [i32; 3] = [libc::SIGINT, libc::SIGQUIT, libc::SIGWINCH];

/// Who sent those since they were last looked at, a bit for each signal: a terminal (the kernel: `SI_KERNEL`), and processes.
static BY_TERMINAL: AtomicU32 = AtomicU32::new(0);
static BY_PROCESSES: AtomicU32 = AtomicU32::new(0);

/// Keeps who sends what terminals send, too. To be called before anybody listens: handlers are called in the order in which they came.
fn note_senders() -> Result<(), Failure> {
    for signal in OF_TERMINALS {
        let note = move |info: &libc::siginfo_t| {
            let who = match info.si_code {
                libc::SI_KERNEL => &BY_TERMINAL,
                _ => &BY_PROCESSES,
            };
            who.fetch_or(1 << signal, Ordering::SeqCst);
        };
        // SAFETY: it only sets a bit, which a signal handler may do (signal-safety(7)).
        unsafe { signal_hook_registry::register_sigaction(signal, note) }
            .map_err(|error| Failure::host(format!("cannot listen for signals: {error}")))?;
    }
    Ok(())
}

/// Whether a signal that has come to us came to this child as well: from the terminal, which tells all of our process group. To be asked
/// once for each that comes.
pub fn has_come_to(signal: i32, child: u32) -> bool {
    if !OF_TERMINALS.contains(&signal) {
        return false;
    }
    let bit = 1 << signal;
    let by_process = BY_PROCESSES.fetch_and(!bit, Ordering::SeqCst) & bit != 0;
    let by_terminal = BY_TERMINAL.fetch_and(!bit, Ordering::SeqCst) & bit != 0;
    // SAFETY: both calls only ask.
    let is_of_our_group = unsafe { libc::getpgid(child.cast_signed()) == libc::getpgrp() };
    // Of neither: it was seen with the one before it.
    let is_seen = !by_process && !by_terminal;
    is_seen || (by_terminal && !by_process && is_of_our_group)
}
