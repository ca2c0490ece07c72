//! Moments that cannot lock to a job's step: what is looked at now and then, while the job does the same again and again, must not
//! see the same part of it each time. Pure: it is seeded.

use std::time::Duration;

/// A generator that is good enough for this (Knuth, MMIX).
#[derive(Clone, Copy, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// `seed`: any number that differs from watch to watch.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// A number of 31 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        self.0 >> 33
    }

    /// A part, from 0 to 1.
    pub fn part(&mut self) -> f64 {
        self.number() as f64 / (1_u64 << 31) as f64
    }

    /// Anything below `most`.
    pub fn up_to(&mut self, most: Duration) -> Duration {
        most.mul_f64(self.part())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_step_has_its_turn() {
        let mut jitter = Jitter::new(42);
        let grid = Duration::from_millis(250);
        // Steps that fit into the grid of the looks: without the delay each would begin at the same part of one.
        for steps in 1..=6_u32 {
            let mut seen = [0_u32; 8];
            let step_s = grid.as_secs_f64() / f64::from(steps);
            for look in 0..2_000_u32 {
                let at = (grid * look + jitter.up_to(grid)).as_secs_f64();
                seen[((at / step_s).fract() * 8.0) as usize] += 1;
            }
            assert!(
                seen.iter().all(|times| (180..=320).contains(times)),
                "{steps}: {seen:?}"
            );
        }
    }
}
