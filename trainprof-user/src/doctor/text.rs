//! Lays out a diagnosis for a terminal.

use super::{Check, Diagnosis, Status};

/// Narrower than this, lines are not wrapped any further.
const MIN_WIDTH: usize = 60;

/// Renders in at most `width` columns where words allow it. No colours: the words say all.
pub(super) fn render(diagnosis: &Diagnosis, width: usize) -> String {
    let width = width.max(MIN_WIDTH);
    let status_width = Status::WORDS
        .iter()
        .map(|word| word.len())
        .max()
        .unwrap_or(0);
    let name_width = diagnosis
        .checks()
        .map(|check| check.name.chars().count())
        .max()
        .unwrap_or(0);
    let indent = status_width + 2 + name_width + 2;

    let mut out = String::new();
    if let Some(host) = &diagnosis.host {
        out.push_str(&format!(
            "trainprof {} on Linux {} {}\n\n",
            host.trainprof_version, host.kernel_release, host.architecture
        ));
    }
    let mut last_cure = None;
    for check in diagnosis.checks() {
        let head = format!(
            "{:status_width$}  {:name_width$}  ",
            check.status.word(),
            check.name
        );
        push_wrapped(&mut out, &head, &check.found, indent, width);
        if check.status != Status::Ok {
            push_note(&mut out, "needed for ", &check.needed_for, indent, width);
            if let Some(cure) = &check.cure {
                let same = last_cure.replace(cure) == Some(cure);
                push_note(
                    &mut out,
                    "cure: ",
                    if same { "the same" } else { cure },
                    indent,
                    width,
                );
            }
        }
    }
    out.push('\n');
    push_wrapped(&mut out, "", &summary(diagnosis), 0, width);
    out
}

fn summary(diagnosis: &Diagnosis) -> String {
    let names = |status| {
        let names: Vec<&str> = diagnosis
            .checks()
            .filter(|check: &&Check| check.status == status)
            .map(|check| check.name.as_str())
            .collect();
        names.join(", ")
    };
    let (missing, warnings) = (names(Status::Missing), names(Status::Warning));
    match (missing.as_str(), warnings.as_str()) {
        ("", "") => "trainprof can watch jobs here.".to_owned(),
        ("", warnings) => format!("trainprof can watch jobs here, with less to see: {warnings}."),
        (missing, _) => format!("trainprof cannot watch jobs here: {missing}."),
    }
}

fn push_note(out: &mut String, label: &str, text: &str, indent: usize, width: usize) {
    let head = format!("{:indent$}{label}", "");
    push_wrapped(out, &head, text, indent + 2, width);
}

/// Writes words after `head`, going on `indent` columns in where a line would pass `width`. A word that is too
/// long for a line stands whole: commands must survive copying.
fn push_wrapped(out: &mut String, head: &str, text: &str, indent: usize, width: usize) {
    let mut line = head.to_owned();
    let mut at_start = true;
    for word in text.split_whitespace() {
        let length = line.chars().count();
        if !at_start && length + 1 + word.chars().count() > width {
            out.push_str(line.trim_end());
            out.push('\n');
            line = " ".repeat(indent);
            at_start = true;
        }
        if !at_start {
            line.push(' ');
        }
        line.push_str(word);
        at_start = false;
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, status: Status, found: &str) -> Check {
        Check {
            name: name.into(),
            status,
            found: found.into(),
            needed_for: "everything".into(),
            cure: (status != Status::Ok).then(|| "do this".into()),
        }
    }

    #[test]
    fn columns_align_and_only_trouble_is_explained() {
        let diagnosis = Diagnosis {
            host: None,
            checks: vec![
                check("kernel", Status::Ok, "6.18"),
                check("kernel lockdown", Status::Warning, "unknown"),
            ],
            extra: vec![check("offsets", Status::Missing, "none")],
        };
        assert_eq!(
            diagnosis.to_text(90),
            "\
ok       kernel           6.18
warning  kernel lockdown  unknown
                          needed for everything
                          cure: do this
missing  offsets          none
                          needed for everything
                          cure: the same

trainprof cannot watch jobs here: offsets.
"
        );
    }

    #[test]
    fn long_text_is_wrapped_and_words_stay_whole() {
        let mut out = String::new();
        let long = "x".repeat(30);
        push_wrapped(&mut out, "a: ", &format!("one two {long} three"), 3, 20);
        assert_eq!(out, format!("a: one two\n   {long}\n   three\n"));
        let mut out = String::new();
        push_wrapped(&mut out, "a: ", "", 3, 20);
        assert_eq!(out, "a:\n");
    }

    #[test]
    fn the_last_line_tells_the_whole() {
        let diagnosis = |checks| Diagnosis {
            host: None,
            checks,
            extra: Vec::new(),
        };
        let cases = [
            (vec![], "trainprof can watch jobs here."),
            (
                vec![
                    check("a", Status::Warning, ""),
                    check("b", Status::Warning, ""),
                ],
                "trainprof can watch jobs here, with less to see: a, b.",
            ),
            (
                vec![
                    check("a", Status::Warning, ""),
                    check("b", Status::Missing, ""),
                ],
                "trainprof cannot watch jobs here: b.",
            ),
        ];
        for (checks, expected) in cases {
            assert_eq!(summary(&diagnosis(checks)), expected);
        }
    }
}
