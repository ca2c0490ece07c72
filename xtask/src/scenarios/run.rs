//! One run of a scenario: the job with the fault, watched; then beside one without, for what the fault costs.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use super::{
    catalogue::{Scenario, Sort},
    gain::Gain,
    group, interrupt,
    param::Settings,
    place::{Culprit, Data, Ground, Place},
    process::{Listen, Process, now_ns},
    random::Random,
};
use crate::cmd::{output, run};

pub struct Options {
    /// None: the job is only timed, not watched.
    pub trainprof: Option<PathBuf>,
    pub watch_s: f64,
    /// Where recordings, reports and truth are kept
    pub keep: Option<PathBuf>,
    /// Whether it is measured what the fault costs.
    pub gains: bool,
}

/// What one run gave.
pub struct Outcome {
    pub settings: Value,
    pub report: Option<Value>,
    /// What the job timed itself, while it was watched
    pub truth: Value,
    /// None for healthy jobs, and where it was not asked for
    pub gain: Option<Gain>,
    /// Processes of which the report must name one
    pub named: Vec<Culprit>,
    /// CPUs that were used on average by processes that are not part of the run
    pub foreign_cpus: f64,
}

pub fn once(
    ground: &Ground,
    scenario: &Scenario,
    settings: &Settings,
    options: &Options,
    label: &str,
    random: &mut Random,
) -> Result<Outcome> {
    let data = Data::make(ground, scenario, settings, random)?;
    let place = Place::set_up(ground, scenario, settings, &data, true, &json!({}), random)?;
    let mut job = place.start_job(ground)?;
    let busy = (group::machine_cpu_s()?, place.everything.cpu_s()?, now_ns());
    let (begin, end, report) = match &options.trainprof {
        Some(trainprof) => watch(trainprof, &place, &job, options, label)?,
        None => {
            let begin = now_ns();
            pass(&mut job, Duration::from_secs_f64(options.watch_s))?;
            (begin, now_ns(), None)
        }
    };
    let machine_s = group::machine_cpu_s()? - busy.0;
    let ours_s = place.everything.cpu_s()? - busy.1;
    let foreign_cpus = (machine_s - ours_s) / ((now_ns() - busy.2) as f64 / 1e9);
    let gain = match scenario.sort {
        Sort::Fault if options.gains => Some(Gain::measure(
            ground,
            scenario,
            settings,
            options,
            (&place, job),
            &data,
            random,
        )?),
        _ => {
            drop(job);
            None
        }
    };
    let truth = truth(ground, &place, settings, &[(begin, end)])?;
    keep(options, label, &place, &truth)?;
    let mut named = place.named.clone();
    named.extend(
        truth["named"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|pid| u32::try_from(pid.as_u64()?).ok())
            .map(|pid| Culprit { pid, program: None }),
    );
    Ok(Outcome {
        settings: settings.json(),
        report,
        truth,
        gain,
        named,
        foreign_cpus,
    })
}

/// A trainprof that watches a job from now on: until the job ends, if no option says otherwise.
pub fn attach(
    trainprof: &Path,
    place: &Place,
    job: &Process,
    options: &[String],
    variables: &[(&str, String)],
) -> Result<(u64, Process)> {
    let mut argv = vec![
        trainprof.display().to_string(),
        "attach".to_owned(),
        job.pid().to_string(),
    ];
    argv.extend_from_slice(options);
    let mut attach = Process::start(
        &argv,
        &place.log,
        &[place.everything.dir().to_owned()],
        Listen::Errors,
        &place.log.join("report.txt"),
        variables,
    )?;
    let (begin, _) = attach.line("trainprof: watching", Duration::from_secs(20))?;
    Ok((begin, attach))
}

/// Lets a job run for so long.
pub fn pass(job: &mut Process, time: Duration) -> Result<()> {
    let until = now_ns() + time.as_nanos() as u64;
    interrupt::wait_for("the job", time + Duration::from_secs(10), || {
        anyhow::ensure!(job.is_alive(), "the job ended early");
        Ok((now_ns() >= until).then_some(()))
    })
}

/// When the watch began and ended, and the report.
fn watch(
    trainprof: &Path,
    place: &Place,
    job: &Process,
    options: &Options,
    label: &str,
) -> Result<(u64, u64, Option<Value>)> {
    let report = place.log.join("report.json");
    let mut argv: Vec<String> = [
        "-d",
        &format!("{}s", options.watch_s),
        "--json",
        &report.display().to_string(),
    ]
    .map(|word| (*word).to_owned())
    .into();
    if let Some(folder) = &options.keep {
        argv.push("-o".into());
        argv.push(folder.join(format!("{label}.rec")).display().to_string());
    }
    let mut variables = Vec::new();
    if let Some((library, state)) = &place.gpu {
        argv.push("--gpu".into());
        argv.push(library.display().to_string());
        variables.push(("FAKE_NVML", state.display().to_string()));
    }
    let (begin, mut attach) = attach(trainprof, place, job, &argv, &variables)?;
    attach
        .finish(Duration::from_secs_f64(options.watch_s + 30.0))
        .context("trainprof")?;
    let text = fs::read_to_string(&report).context("trainprof wrote no report")?;
    let report: Value = serde_json::from_str(&text).context("the report is not JSON")?;
    let seconds = report["duration_s"]
        .as_f64()
        .context("the report has no duration_s")?;
    Ok((begin, begin + (seconds * 1e9) as u64, Some(report)))
}

/// What an ended job timed within windows (ns).
pub fn truth(
    ground: &Ground,
    place: &Place,
    settings: &Settings,
    windows: &[(u64, u64)],
) -> Result<Value> {
    let times = windows.iter().flat_map(|&(begin, end)| [begin, end]);
    let text = output(
        std::process::Command::new(&ground.python)
            .args(["-m", "kit.truth"])
            .args([&place.job, &place.log])
            .arg(settings.cycle().to_string())
            .args(times.map(|time| time.to_string()))
            .current_dir(&place.job),
    )?;
    serde_json::from_str(&text).context("truth is not JSON")
}

fn keep(options: &Options, label: &str, place: &Place, truth: &Value) -> Result<()> {
    let Some(folder) = &options.keep else {
        return Ok(());
    };
    for (from, to) in [("report.json", "json"), ("report.txt", "txt")] {
        let from = place.log.join(from);
        if from.exists() {
            run(std::process::Command::new("cp")
                .arg(from)
                .arg(folder.join(format!("{label}.{to}"))))?;
        }
    }
    fs::write(
        folder.join(format!("{label}.truth.json")),
        serde_json::to_string_pretty(truth)?,
    )?;
    Ok(())
}
