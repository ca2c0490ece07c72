//! The sizes, rates and counts of a scenario: a usual value, and the range in which `--vary` picks.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::random::Random;

#[derive(Clone, Copy, Debug)]
pub enum Param {
    Number(&'static str, f64, [f64; 2]),
    Whole(&'static str, u64, [u64; 2]),
    /// The first word is the usual one.
    Word(&'static str, &'static [&'static str]),
}

pub const fn number(name: &'static str, usual: f64, range: [f64; 2]) -> Param {
    Param::Number(name, usual, range)
}

pub const fn whole(name: &'static str, usual: u64, range: [u64; 2]) -> Param {
    Param::Whole(name, usual, range)
}

pub const fn word(name: &'static str, words: &'static [&'static str]) -> Param {
    Param::Word(name, words)
}

/// What one run uses.
#[derive(Clone, Debug)]
pub struct Settings(BTreeMap<&'static str, Value>);

impl Settings {
    pub fn usual(params: &[Param]) -> Self {
        Self::of(params, |param| match *param {
            Param::Number(name, usual, _) => (name, json!(usual)),
            Param::Whole(name, usual, _) => (name, json!(usual)),
            Param::Word(name, words) => (name, json!(words[0])),
        })
    }

    pub fn varied(params: &[Param], random: &mut Random) -> Self {
        Self::of(params, |param| match *param {
            Param::Number(name, _, [low, high]) => (
                name,
                json!((random.between(low, high) * 1000.0).round() / 1000.0),
            ),
            Param::Whole(name, _, [low, high]) => {
                (name, json!(low + random.next() % (high - low + 1)))
            }
            Param::Word(name, words) => (name, json!(random.pick(words))),
        })
    }

    fn of(params: &[Param], value: impl FnMut(&Param) -> (&'static str, Value)) -> Self {
        Self(params.iter().map(value).collect())
    }

    /// After how many turns a loop repeats itself: what it does every so many turns, an epoch, or a batch of each worker.
    pub fn cycle(&self) -> u64 {
        ["every", "epoch", "workers"]
            .iter()
            .find_map(|name| self.0.get(name)?.as_u64())
            .map_or(1, |turns| turns.max(1))
    }

    pub fn get(&self, name: &str) -> Result<f64> {
        self.0
            .get(name)
            .and_then(Value::as_f64)
            .with_context(|| format!("the scenario sets no {name}"))
    }

    pub fn json(&self) -> Value {
        json!(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varied_stays_in_range() {
        let params = [
            number("rate", 2.0, [1.0, 3.0]),
            whole("count", 2, [2, 4]),
            word("start", &["fork", "spawn"]),
        ];
        let usual = Settings::usual(&params);
        assert_eq!(
            usual.json(),
            json!({"rate": 2.0, "count": 2, "start": "fork"})
        );
        let mut random = Random::new(5);
        for _ in 0..100 {
            let settings = Settings::varied(&params, &mut random);
            assert!((1.0..=3.0).contains(&settings.get("rate").unwrap()));
            assert!((2.0..=4.0).contains(&settings.get("count").unwrap()));
        }
        assert!(usual.get("other").is_err());
    }
}
