//! The collector's side: starts the process that asks, takes what it tells, notices its silence.

use std::{
    collections::VecDeque,
    path::PathBuf,
    time::{Duration, Instant},
};

use super::{Answer, Choice, ask};
use crate::{
    doctor,
    kernel::aside::{Aside, Ending, Received},
};

/// How long loading a library that was asked for is waited for.
const LOAD: Duration = Duration::from_secs(3);
/// A driver that has said nothing for so long is said not to answer.
const SILENT: Duration = Duration::from_secs(5);
/// How long the end of a process that may hang in a driver is waited for.
const PATIENCE: Duration = Duration::from_millis(200);
/// A driver that has said something within this time may be waited for once more, for so long, when a watch ends.
const ANSWERS: Duration = Duration::from_secs(1);
const LAST: Duration = Duration::from_millis(100);
/// Answers taken at once; more wait for the next look.
const AT_ONCE: usize = 256;

/// The driver, as far as it is seen.
pub struct Driver {
    aside: Option<Aside>,
    /// Answers that came while the library was waited for.
    early: VecDeque<Answer>,
    heard: Instant,
    silent: bool,
    /// CPU time of the process that asks, when it was last read, nanoseconds.
    cpu_ns: u64,
}

/// What is heard of the driver.
#[derive(Clone, Debug, PartialEq)]
pub enum Heard {
    Answer(Answer),
    /// It has not answered for so many seconds. Said once for each silence.
    Silent(u64),
    /// It will not answer any more.
    Ended(String),
}

/// A library that was named cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[error("cannot load {}: {reason}. --gpu takes auto, off, or the path of libnvidia-ml.so.1", path.display())]
pub struct LoadError {
    path: PathBuf,
    reason: String,
}

impl Driver {
    /// Starts asking. Must be called while we have one thread and no probe.
    pub fn start(choice: &Choice) -> Result<Self, LoadError> {
        let mut driver = Self {
            aside: None,
            early: VecDeque::new(),
            heard: Instant::now(),
            silent: false,
            cpu_ns: 0,
        };
        let library = match choice {
            Choice::Off => return Ok(driver),
            Choice::Auto => match doctor::nvml_library() {
                Some(path) => PathBuf::from(path),
                None => {
                    driver.early.push_back(Answer::Missing(
                        "this host has no libnvidia-ml.so.1, NVIDIA's driver library".to_owned(),
                    ));
                    return Ok(driver);
                }
            },
            Choice::Library(path) => path.clone(),
        };
        match Aside::start(c"tp-gpu-driver", &[], Ending::Killed, PATIENCE, |line| {
            ask::serve(line, &library)
        }) {
            Ok(aside) => driver.aside = Some(aside),
            Err(error) => driver.early.push_back(Answer::Missing(format!(
                "cannot start a process that asks the driver: {error}"
            ))),
        }
        if matches!(choice, Choice::Library(_)) {
            driver.wait_for_library().map_err(|reason| LoadError {
                path: library,
                reason,
            })?;
        }
        Ok(driver)
    }

    /// A library that was named must load, or that is an error of the one who named it.
    fn wait_for_library(&mut self) -> Result<(), String> {
        let Some(aside) = &mut self.aside else {
            return Ok(());
        };
        match aside.line.receive(LOAD) {
            Received::Message(Answer::NotLoadable(reason)) => Err(reason),
            Received::Message(answer) => {
                self.early.push_back(answer);
                Ok(())
            }
            // It hangs while loading: said in time, as any silence.
            Received::Nothing => Ok(()),
            Received::Ended => Err("loading it ended the process that did".to_owned()),
        }
    }

    /// CPU time of the process that asks, nanoseconds.
    pub fn cpu_ns(&mut self) -> u64 {
        if let Some(aside) = &mut self.aside {
            self.cpu_ns = aside.cpu_ns();
        }
        self.cpu_ns
    }

    /// What the driver has kept so far, and all that was heard since the last call. Waits for it, though not for long: one that has not
    /// answered for a while is not asked.
    pub fn last(&mut self) -> Vec<Heard> {
        let mut out = self.hear();
        let answers = self.heard.elapsed() < ANSWERS;
        let Some(aside) = self.aside.as_mut().filter(|_| answers) else {
            return out;
        };
        if !matches!(aside.line.send(&ask::Request::Last), Ok(true)) {
            return out;
        }
        let until = Instant::now() + LAST;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match aside.line.receive(left) {
                Received::Message(Answer::AllTold) | Received::Nothing => return out,
                Received::Message(answer) => out.push(Heard::Answer(answer)),
                // The watch is over: how it ended is of no use any more.
                Received::Ended => return out,
            }
        }
    }

    /// What was heard since the last call. Never waits.
    pub fn hear(&mut self) -> Vec<Heard> {
        let mut out: Vec<Heard> = self.early.drain(..).map(Heard::Answer).collect();
        let Some(aside) = &mut self.aside else {
            return out;
        };
        for _ in 0..AT_ONCE {
            match aside.line.receive(Duration::ZERO) {
                Received::Message(answer) => {
                    self.heard = Instant::now();
                    self.silent = false;
                    out.push(Heard::Answer(answer));
                }
                Received::Nothing => break,
                Received::Ended => {
                    let how = ended(aside);
                    self.aside = None;
                    out.push(Heard::Ended(how));
                    return out;
                }
            }
        }
        let silence = self.heard.elapsed();
        if silence >= SILENT && !self.silent {
            self.silent = true;
            out.push(Heard::Silent(silence.as_secs()));
        }
        out
    }
}

/// How the process ended. Its line may close a moment before it can be waited for.
fn ended(aside: &mut Aside) -> String {
    for _ in 0..20 {
        if let Some(how) = aside.ended() {
            return how.to_owned();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    "not known how".to_owned()
}
