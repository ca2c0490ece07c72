//! Times what removing the cause brings. The job with the fault and the same job without it take turns, a second
//! each and one frozen while the other runs: a machine that changes its speed from minute to minute does so for both.

use std::{fs, time::Duration};

use anyhow::{Result, ensure};
use serde_json::Value;

use super::{
    catalogue::Scenario,
    interrupt,
    param::Settings,
    place::{Data, Ground, Job, Place},
    process::{Process, now_ns},
    random::Random,
    run::{self, Options},
};

/// With, without; without, with; and so on: what changes steadily meanwhile falls on both alike.
const PAIRS: usize = 8;
const SLICE: Duration = Duration::from_secs(1);
/// After a thaw caches are cold, and what a disk or a server did meanwhile is there at once.
const WARM_IN: Duration = Duration::from_millis(500);

/// One of two jobs that take turns.
struct Side<'a> {
    place: &'a Place,
    /// Ended before the job.
    _watch: Option<Process>,
    job: Job<'a>,
    /// When it was timed (ns)
    windows: Vec<(u64, u64)>,
}

impl<'a> Side<'a> {
    /// Watched as the other one is: a gain is of like and like.
    fn watched(place: &'a Place, job: Job<'a>, options: &Options) -> Result<Self> {
        let watch = match &options.trainprof {
            Some(trainprof) => Some(run::attach(trainprof, place, &job, &[], &[])?),
            None => None,
        };
        Ok(Self {
            place,
            _watch: watch.map(|(_, process)| process),
            job,
            windows: Vec::new(),
        })
    }

    fn turns(&self) -> Result<u64> {
        let bytes = fs::read(self.place.log.join("turns"))?;
        Ok(bytes.try_into().map_or(0, u64::from_ne_bytes))
    }

    /// Waits until a cycle of the loop ends, so that none which lies in a window is cut by a freeze.
    fn end_of_cycle(&mut self, cycle: u64) -> Result<()> {
        let enough = (self.turns()? / cycle + 1) * cycle;
        interrupt::wait_for("a turn", Duration::from_secs(20), || {
            ensure!(self.job.is_alive(), "the job ended early");
            Ok((self.turns()? >= enough).then_some(()))
        })
    }

    /// Runs for a slice while the other one is frozen.
    fn slice(&mut self, other: &Self, cycle: u64) -> Result<()> {
        if self.job.freezer.is_frozen()? {
            other.job.freezer.freeze()?;
            self.place.renew()?;
            self.job.freezer.thaw()?;
            run::pass(&mut self.job, WARM_IN)?;
            self.end_of_cycle(cycle)?;
        }
        let begin = now_ns();
        run::pass(&mut self.job, SLICE)?;
        self.windows.push((begin, now_ns()));
        self.end_of_cycle(cycle)
    }
}

/// What both jobs timed in their slices, with the fault and without.
pub struct Gain {
    pub truth_with: Value,
    pub truth_without: Value,
}

impl Gain {
    /// Takes over the job with the fault, which may have run for some time.
    pub fn measure(
        ground: &Ground,
        scenario: &Scenario,
        settings: &Settings,
        options: &Options,
        (place, job): (&Place, Job),
        data: &Data,
        random: &mut Random,
    ) -> Result<Self> {
        job.freezer.freeze()?;
        // Its own data: what one job reads would be cached for the other.
        let copy = data.copy(ground, random)?;
        let units = place.units()?;
        let other = Place::set_up(ground, scenario, settings, &copy, false, &units, random)?;
        let (with, without) = {
            let mut without = Side::watched(&other, other.start_job(ground)?, options)?;
            let mut with = Side::watched(place, job, options)?;
            let cycle = settings.cycle();
            for pair in 0..PAIRS {
                if pair % 2 == 0 {
                    with.slice(&without, cycle)?;
                    without.slice(&with, cycle)?;
                } else {
                    without.slice(&with, cycle)?;
                    with.slice(&without, cycle)?;
                }
            }
            (with.windows, without.windows)
        };
        Ok(Self {
            truth_with: run::truth(ground, place, settings, &with)?,
            truth_without: run::truth(ground, &other, settings, &without)?,
        })
    }
}
