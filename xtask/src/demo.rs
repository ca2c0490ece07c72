//! Shows trainprof on a real training job: PyTorch on small JPEG files, started without any knowledge of trainprof.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    cmd::{as_root, cargo, root, run},
    setup,
    test::target_dir,
};

const PICTURES: u32 = 2_000;
/// The job trains by then: the first batches are slow, since the workers are still starting.
const WARM_AFTER: &str = "step 20 ";

/// `cargo xtask demo`
pub fn main() -> Result<()> {
    setup::for_demo()?;
    run(cargo().args(["build", "--release", "-p", "trainprof-user"]))?;
    show(&target_dir()?.join("release/trainprof"))
}

/// The same with a program that is there already, and whether it shows what it is for: the trainer's steps, its two workers and a verdict.
pub fn check(trainprof: &Path) -> Result<()> {
    show(trainprof)?;
    let file = root().join("target/demo/report.json");
    let text = fs::read(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let report: serde_json::Value =
        serde_json::from_slice(&text).with_context(|| format!("{} is no JSON", file.display()))?;
    let (steps, workers) = (&report["steps"]["count"], &report["workers"]["count"]);
    if steps.as_u64() < Some(10) || workers != 2 || !report["verdict"]["bottleneck"].is_string() {
        bail!(
            "{steps} steps, {workers} workers, verdict {}",
            report["verdict"]
        );
    }
    Ok(())
}

fn show(trainprof: &Path) -> Result<()> {
    let python = setup::python().context("no Python here can import PyTorch")?;
    let scripts = root().join("xtask/demo");
    let dir = root().join("target/demo");
    fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let pictures = dir.join("pictures");
    let mut make = Command::new(&python);
    run(make
        .arg(scripts.join("make_pictures.py"))
        .arg(&pictures)
        .arg(PICTURES.to_string()))?;

    let mut job = Job::start(&python, &scripts.join("train.py"), &pictures)?;
    println!(
        "a training job runs as process {}; it knows nothing of trainprof",
        job.0.id()
    );
    job.wait_until_warm()?;
    println!(
        "watching it for 15 s: trainprof attach {} -d 15s",
        job.0.id()
    );
    let mut attach = as_root(trainprof)?;
    attach
        .args(["attach", &job.0.id().to_string(), "-d", "15s", "--json"])
        .arg(dir.join("report.json"));
    run(attach.arg("-o").arg(dir.join("job.rec")))?;
    println!("\nthe same as data: target/demo/report.json; the recording: target/demo/job.rec");
    Ok(())
}

/// A running training script with its workers; ended when dropped.
struct Job(Child);

impl Job {
    fn start(python: &Path, script: &Path, pictures: &Path) -> Result<Self> {
        let mut command = Command::new(python);
        command
            .arg(script)
            .arg(pictures)
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        // A group of its own, so that its workers end with it.
        let child = command.process_group(0).spawn();
        Ok(Self(child.with_context(|| {
            format!("cannot start {}", python.display())
        })?))
    }

    /// Reads what the job prints until it trains, and goes on reading, so that it never waits for us.
    fn wait_until_warm(&mut self) -> Result<()> {
        let mut lines =
            BufReader::new(self.0.stdout.take().context("the job's output is piped")?).lines();
        for line in lines.by_ref() {
            let line = line?;
            println!("  job: {line}");
            if line.starts_with(WARM_AFTER) {
                thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
                return Ok(());
            }
        }
        bail!("the training job ended before it trained")
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let group = -self.0.id().cast_signed();
        // SAFETY: kill has no preconditions; the group is the job's own, and not yet waited for.
        unsafe { libc::kill(group, libc::SIGTERM) };
        self.0.wait().ok();
    }
}
