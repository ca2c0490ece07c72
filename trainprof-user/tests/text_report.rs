//! The text report of the golden recordings: the verdict leads it, and nothing is cut but the command and rows of tables.

mod common;

use common::reports;
use trainprof_user::report::{self, Shown};

/// Columns of a file, and of the least terminal that all of it fits into.
const WIDTH: usize = 100;
const LEAST: usize = 80;

/// The rest of the paragraph that begins with `mark`, its lines put together.
fn paragraph(text: &str, mark: &str) -> Option<String> {
    let mut lines = text.lines().skip_while(|line| !line.starts_with(mark));
    let mut out = lines.next()?[mark.len()..].to_owned();
    let indent = " ".repeat(mark.chars().count());
    let follows = |line: &&str| {
        let marks = ["do: ", "also: ", "confidence "];
        line.starts_with(&indent) && !marks.iter().any(|mark| line.trim_start().starts_with(mark))
    };
    for line in lines.take_while(follows) {
        out.push(' ');
        out.push_str(line.trim_start());
    }
    Some(out)
}

#[test]
fn the_verdict_leads_with_what_to_do() {
    for (path, report) in reports(Shown::default()) {
        let text = report::to_text(&report, 20, WIDTH);
        let verdict = report.verdict.as_ref().expect("a verdict");
        let said = paragraph(&text, "→ ").expect("a first line");
        assert_eq!(said, verdict.summary, "{}", path.display());
        assert!(text.starts_with('→'), "{}", path.display());
        let finding = report
            .findings
            .iter()
            .find(|finding| finding.kind == verdict.bottleneck)
            .expect("the verdict's finding");
        let advice = paragraph(&text, "  do: ").expect("advice");
        assert_eq!(advice, finding.advice, "{}", path.display());
    }
}

/// What begins this far in is a name below its row of a table.
const NAME: &str = "                    ";

#[test]
fn nothing_is_cut_but_rows_of_tables() {
    for ((path, report), width) in reports(Shown::default())
        .iter()
        .flat_map(|of| [(of, WIDTH), (of, LEAST)])
    {
        let text = report::to_text(report, 20, width);
        let path = path.display();
        for line in text.lines() {
            assert!(line.chars().count() <= width, "{path}: {line}");
            // A command may be as long as it likes, and names and paths in tables; what we say ourselves may not.
            let is_name = line.contains('/') || line.starts_with(NAME);
            let may_be_cut = line.starts_with("job ") || is_name;
            assert!(may_be_cut || !line.ends_with('…'), "{path}: {line}");
        }
        for mark in [
            "the trainer's time: ",
            "steps: ",
            "files: ",
            "memory: ",
            "seen: ",
            "cost of watching: ",
        ] {
            let said = paragraph(&text, mark);
            let said = said.unwrap_or_else(|| panic!("{path}: no {mark}"));
            assert!(!said.contains('…'), "{path}: {mark}{said}");
        }
    }
}

#[test]
fn what_each_worker_waited_for_is_told_however_few_threads_are_listed() {
    let mut workers = 0;
    for (path, report) in reports(Shown { top: 1 }) {
        let all = report.job.processes.iter();
        let rows = all.filter(|row| row.role == "worker" && row.share.on_cpu < 0.9);
        for row in rows {
            workers += 1;
            let present = row.present_s.expect("it was there");
            let sum: f64 = row.waits.iter().map(|wait| wait.seconds).sum();
            // All but what it ran and was runnable, and waits beyond the five longest.
            let waited = (1.0 - row.share.on_cpu - row.share.runnable) * present;
            assert!(
                (1..=5).contains(&row.waits.len()) && sum > 0.7 * waited && sum < 1.01 * waited,
                "{}: worker {}: {sum} of {waited} s in {:?}",
                path.display(),
                row.pid,
                row.waits
            );
        }
        let text = report::to_text(&report, 20, WIDTH);
        if report.workers.count > 1 && path.ends_with("cold-disk.rec") {
            let mut said = text
                .lines()
                .skip_while(|line| *line != "what the workers waited for");
            let longest = said.nth(1).expect("a wait");
            assert!(longest.contains("file in "), "{longest}");
        }
    }
    assert!(workers > 5, "{workers} workers");
}

#[test]
fn the_trainer_is_told_however_few_rows_are_listed() {
    let mut waiting = 0;
    for (path, report) in reports(Shown { top: 1 }) {
        let Some(trainer) = &report.trainer else {
            continue;
        };
        let text = report::to_text(&report, 1, WIDTH);
        let path = path.display();
        assert_eq!(report.threads.len(), 1, "{path}");
        assert_eq!(report.threads[0].tid, trainer.tid, "{path}");
        let said = format!("the trainer's thread {} waited", trainer.tid);
        assert!(text.contains(&said), "{path}: {text}");
        let mut table = text.lines().skip_while(|line| !line.contains("ROLE"));
        let row = table.nth(1).expect("a process");
        assert!(
            row.trim_start().starts_with(&trainer.pid.to_string()),
            "{path}: {row}"
        );
        waiting += usize::from(trainer.share.on_cpu < 0.3);
    }
    assert!(waiting >= 5, "{waiting} trainers that wait");
}

#[test]
fn the_text_says_where_the_job_ran() {
    for (path, report) in reports(Shown::default()) {
        let text = report::to_text(&report, 20, WIDTH);
        let host = report.host.as_ref().expect("a host");
        let said = paragraph(&text, "on: ").expect("a line");
        assert!(
            said.starts_with(&format!("Linux {}, {} CPU", host.kernel, host.cpus)),
            "{}: {said}",
            path.display()
        );
        assert!(said.contains("Python 3."), "{}: {said}", path.display());
    }
}

#[test]
fn each_table_has_as_many_rows_as_were_asked_for() {
    for (path, report) in reports(Shown::default()) {
        let text = report::to_text(&report, 1, WIDTH);
        let rows = text
            .lines()
            .skip_while(|line| !line.trim_start().starts_with("PID"))
            .skip(1)
            .take_while(|line| !line.contains(" more ("))
            .filter(|line| !line.trim_start().starts_with('('))
            .take_while(|line| !line.is_empty())
            .count();
        assert_eq!(rows, 1, "{}: {text}", path.display());
    }
}
