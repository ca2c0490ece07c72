//! The quick scenarios as a part of the tests: whether each has its verdict, names its culprit and raises no false alarm.
//!
//! The suite runs as a program of its own: it takes signals, a control group and a lock for itself, and needs root where the tests need none.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use super::{catalogue::ALL, group, judge::is_wrong};
use crate::{
    cmd::as_root,
    outcome::{Outcome, Test},
    test::target_dir,
};

/// How often a scenario is run that is wrong each time: whatever else uses this machine may decide.
const TRIES: usize = 3;

/// What this host lacks for it.
pub fn lack() -> Option<String> {
    group::lack().map(|lack| format!("the suite needs {lack}"))
}

pub fn verdicts(trainprof: &Path) -> Result<Outcome> {
    let mut outcome = Outcome::of("scenarios");
    let quick = ALL.iter().filter(|scenario| scenario.smoke);
    let mut left: Vec<String> = quick.map(|scenario| scenario.name.to_owned()).collect();
    for again in 0..TRIES {
        let mut wrong = Vec::new();
        for (name, row) in left.iter().zip(run(trainprof, &left)?) {
            match what_is_wrong(row.as_ref()) {
                None => {
                    outcome.tally.passed += 1;
                    if again > 0 {
                        outcome.repeated.push(Test {
                            binary: "scenarios".to_owned(),
                            name: name.clone(),
                        });
                    }
                }
                Some(words) if again + 1 == TRIES => outcome.broke(format!("{name}: {words}")),
                Some(words) => {
                    println!("AGAIN {name}: {words}");
                    wrong.push(name.clone());
                }
            }
        }
        if wrong.is_empty() {
            break;
        }
        left = wrong;
    }
    Ok(outcome)
}

/// What the suite says of each of these, one after the other.
fn run(trainprof: &Path, names: &[String]) -> Result<Vec<Option<Value>>> {
    let file: PathBuf = target_dir()?.join("live-verdicts.json");
    fs::remove_file(&file).ok();
    let mut command = as_root(std::env::current_exe()?)?;
    command
        .args([
            "scenarios",
            "--smoke",
            "--no-gain",
            "--filter",
            &names.join(","),
        ])
        .arg("--program")
        .arg(trainprof)
        .arg("--json")
        .arg(&file);
    // It fails when one of them missed anything, and says so in the file.
    let status = command.status().context("cannot start the suite")?;
    let text = fs::read_to_string(&file)
        .with_context(|| format!("the suite ended ({status}) without a result"))?;
    let all: Value = serde_json::from_str(&text)?;
    let rows = all["rows"].as_array().context("rows of the suite")?;
    let of = |name: &String| rows.iter().find(|row| row["scenario"] == **name).cloned();
    Ok(names.iter().map(of).collect())
}

/// `None`: it is right in all that a user acts on.
fn what_is_wrong(row: Option<&Value>) -> Option<String> {
    let Some((row, misses)) = row.and_then(|row| Some((row, row["misses"].as_array()?))) else {
        return Some("no result".to_owned());
    };
    let misses: Vec<&str> = misses.iter().filter_map(Value::as_str).collect();
    is_wrong(&misses).then(|| format!("{} (found {})", misses.join(", "), row["found"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::what_is_wrong;

    #[test]
    fn degrees_are_no_mistakes() {
        let row = |misses: &[&str]| json!({"misses": misses, "found": "compute"});
        assert_eq!(what_is_wrong(Some(&row(&[]))), None);
        assert_eq!(
            what_is_wrong(Some(&row(&["share", "p50", "step count"]))),
            None
        );
        assert!(what_is_wrong(None).is_some());
        for miss in [
            "verdict",
            "culprit not named",
            "false alarm input-cpu",
            "run failed: x",
        ] {
            let words = what_is_wrong(Some(&row(&["share", miss]))).expect("wrong");
            assert!(words.contains(miss), "{words}");
        }
    }
}
