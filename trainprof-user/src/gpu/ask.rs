//! The process that asks the driver: what is due, and telling it.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    Answer,
    nvml::{self, Asked, Events},
    query::Query,
};
use crate::{
    env::clock::now,
    kernel::aside::{Line, Received},
    record::gpu::GpuSampleFact,
};

/// How often the driver's own messages are taken, and the least that is said.
const TICK: Duration = Duration::from_millis(100);
/// Samples of one message: fewer than fill it.
const SAMPLES: usize = 512;

/// What the process is told. (A message without a byte would be the line's end.)
#[derive(Debug, Serialize, Deserialize)]
pub enum Request {
    /// Tell what the driver keeps, since a watch ends.
    Last,
}

/// Tells over a line that may be full. What could not be told is counted.
struct Teller<'a> {
    line: &'a Line,
    dropped: u64,
    gone: bool,
}

impl Teller<'_> {
    fn tell(&mut self, answer: &Answer) {
        if self.dropped > 0
            && let Ok(true) = self.line.send(&Answer::Dropped(self.dropped))
        {
            self.dropped = 0;
        }
        match self.line.send(answer) {
            Ok(true) => {}
            Ok(false) => {
                self.dropped += match answer {
                    Answer::Samples(samples) => samples.len() as u64,
                    Answer::Alive => 0,
                    _ => 1,
                };
            }
            Err(_) => self.gone = true,
        }
    }

    fn samples(&mut self, samples: &[GpuSampleFact]) {
        for part in samples.chunks(SAMPLES) {
            self.tell(&Answer::Samples(part.to_vec()));
        }
    }
}

/// When a query of a device is due.
struct Due {
    device: usize,
    query: Query,
    at: Instant,
}

/// Loads the library and asks until the line ends.
pub fn serve(line: &Line, library: &Path) {
    give_up_privileges();
    let mut teller = Teller {
        line,
        dropped: 0,
        gone: false,
    };
    if let Err(reason) = nvml::check_loadable(library) {
        return teller.tell(&Answer::NotLoadable(reason));
    }
    teller.tell(&Answer::Loaded);
    let nvml = match nvml::open(library) {
        // Shutting the library down may hang as any other call, and this process ends anyway.
        Ok(nvml) => Box::leak(Box::new(nvml)),
        Err(reason) => {
            return teller.tell(&Answer::Missing(format!("{}: {reason}", library.display())));
        }
    };
    let (mut devices, missing) = nvml::devices(nvml);
    for reason in missing {
        teller.tell(&Answer::Missing(reason));
    }
    if devices.is_empty() {
        teller.tell(&Answer::Missing("the driver has no devices".to_owned()));
        return;
    }
    let facts = devices.iter().map(|asked| asked.fact.clone()).collect();
    teller.tell(&Answer::Devices(facts));
    let events = Events::listen(nvml, &devices);
    ask(&mut devices, events.as_ref(), &mut teller);
}

fn ask(devices: &mut [Asked<'_>], events: Option<&Events<'_>>, teller: &mut Teller<'_>) {
    let begun = Instant::now();
    let mut due: Vec<Due> = Query::ALL
        .into_iter()
        .flat_map(|query| (0..devices.len()).map(move |device| (device, query)))
        .map(|(device, query)| Due {
            device,
            query,
            at: begun + Duration::from_millis(query.begins_ms()),
        })
        .collect();
    let mut last = false;
    while !teller.gone && !due.is_empty() {
        if let Some(events) = events {
            let samples = events.take(devices);
            teller.samples(&samples);
        }
        let mut lost = Vec::new();
        for due in &mut due {
            if due.at > Instant::now() || lost.contains(&due.device) {
                continue;
            }
            let asked = &mut devices[due.device];
            match asked.ask(due.query) {
                Ok(told) => {
                    teller.samples(&told.samples);
                    if let Some(users) = told.users {
                        teller.tell(&Answer::Processes {
                            at: now(),
                            device: asked.fact.device,
                            users,
                        });
                    } else if told.samples.is_empty() {
                        teller.tell(&Answer::Alive);
                    }
                }
                Err(nvml::DeviceGone(reason)) => {
                    teller.tell(&Answer::Missing(reason));
                    lost.push(due.device);
                }
            }
            // From now, not from when it was due: a slow driver is not asked the more for it.
            due.at = Instant::now() + Duration::from_millis(due.query.period_ms());
        }
        due.retain(|due| !lost.contains(&due.device));
        teller.tell(if last {
            &Answer::AllTold
        } else {
            &Answer::Alive
        });
        last = false;
        match teller.line.receive(TICK) {
            Received::Message(Request::Last) => {
                last = true;
                for due in &mut due {
                    if due.query.is_kept() {
                        devices[due.device].fetch_anew();
                        due.at = Instant::now();
                    }
                }
            }
            Received::Nothing => {}
            Received::Ended => return,
        }
    }
}

/// A driver's library must not run with the privileges of this program: somebody without any may have named it, and the
/// program has some by `setcap`. Root keeps what the driver's performance counters may need.
fn give_up_privileges() {
    let keep = crate::privilege::Keep {
        // SAFETY: only asks.
        administer: unsafe { libc::getuid() } == 0,
        ..Default::default()
    };
    if crate::privilege::drop_unneeded(keep).is_err() {
        // SAFETY: ends this process, a child of the collector, at once.
        unsafe { libc::_exit(1) };
    }
}
