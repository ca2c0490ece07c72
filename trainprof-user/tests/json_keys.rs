//! docs/JSON.md names every key of the report: those of the model, those of each rule's evidence, and all that reports of the golden
//! recordings have.

mod common;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

use common::reports;
use serde_json::Value;
use trainprof_user::report::{self, Shown};

/// Maps whose keys are names of functions.
const BY_FUNCTION: [&str; 2] = ["functions", "threads"];

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = fs::read_dir(here(folder))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect();
    out.sort();
    assert!(!out.is_empty(), "{folder}");
    out
}

fn document() -> String {
    read(&here("../docs/JSON.md"))
}

/// Words that are written as code.
fn names(text: &str) -> BTreeSet<&str> {
    let in_name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
    text.split('`')
        .skip(1)
        .step_by(2)
        .flat_map(|code| code.split(|c| !in_name(c)))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Names that the document has for the evidence of one kind of finding: in its row, and of every cause. `None`: there is no such row.
fn described<'a>(document: &'a str, kind: &str) -> Option<BTreeSet<&'a str>> {
    let (_, evidence) = document.split_once("\nEvidence of every cause: ")?;
    let (of_every_cause, _) = evidence.split_once("\n- ")?;
    let (_, by_kind) = evidence.split_once("\nAnd by kind:\n")?;
    let begin = format!("| `{kind}` | ");
    let row = by_kind.lines().find(|line| line.starts_with(&begin))?;
    Some(&names(of_every_cause) | &names(row))
}

/// Code before its tests, without comments.
fn code(path: &Path) -> String {
    let text = read(path);
    let code = text.split("#[cfg(test)]").next().unwrap_or_default();
    code.lines()
        .map(|line| line.split("//").next().unwrap_or_default())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Names that a rule's code gives to parts of its evidence: `insert("key", …)`, `entry("key")`, `("key", value)`, `"key": value`.
fn evidence_keys(code: &str) -> BTreeSet<&str> {
    let parts: Vec<&str> = code.split('"').collect();
    let is_key = |at: &usize| {
        let (before, key) = (parts[at - 1].trim_end(), parts[*at]);
        let after = parts.get(at + 1).map_or("", |after| after.trim_start());
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if key.is_empty() || !key.chars().all(is_name) {
            return false;
        }
        let Some(caller) = before.strip_suffix('(') else {
            return after.starts_with(':');
        };
        let called = |name| caller.ends_with(name);
        let is_call = caller.ends_with(|c: char| c.is_alphanumeric() || "_!".contains(c));
        let is_pair = after.strip_prefix(',').is_some_and(|value| {
            // A text is no value.
            !value.trim().is_empty()
        });
        called("insert") || called("entry") || !is_call && is_pair
    };
    // Between two quotation marks lies every other part.
    (1..parts.len())
        .step_by(2)
        .filter(is_key)
        .map(|at| parts[at])
        .collect()
}

#[test]
fn keys_are_told_from_other_texts() {
    let code = r#"
        evidence.insert("count", json!(3));
        evidence.insert(
            "longest_s", rounded(2.0));
        row.insert("touched".to_owned(), bytes);
        evidence.entry("step").or_insert(json!(null));
        let rows = json!({"pid": 1, "command": name(), "none": format!("{a}: no")});
        evidence: [("workers", json!(0)), ("busy", rounded(1.0))].into(),
        let (one, several) = ("worker", "workers of it");
        row.remove("kept"); let role = of.map_or("helper", |role| role.name());
    "#;
    let expected = [
        "count",
        "longest_s",
        "touched",
        "step",
        "pid",
        "command",
        "none",
        "workers",
        "busy",
    ];
    assert_eq!(evidence_keys(code), BTreeSet::from(expected));
}

#[test]
fn evidence_of_each_rule_is_described_in_its_row() {
    let document = document();
    let all = names(&document);
    let mut lacking = Vec::new();
    let mut rules = 0;
    for path in files("src/analysis/rules", "rs") {
        let name = path.file_stem().expect("a name").to_string_lossy();
        let kind = match name.as_ref() {
            "asking" => "allocation-churn".to_owned(),
            name => name.replace('_', "-"),
        };
        let of_kind = described(&document, &kind);
        rules += usize::from(of_kind.is_some());
        // What several rules share may be described anywhere.
        let described = of_kind.as_ref().unwrap_or(&all);
        let code = code(&path);
        let keys = evidence_keys(&code);
        let unknown = keys.difference(described);
        lacking.extend(unknown.map(|key| format!("{kind}: {key}")));
    }
    assert!(rules >= 24, "{rules} rows");
    assert!(lacking.is_empty(), "not in docs/JSON.md: {lacking:#?}");
}

/// The name of a field.
fn field(code: &str) -> Option<&str> {
    let (name, _) = code.split_once(": ")?;
    let is_name = name.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_name.then_some(name)
}

#[test]
fn keys_of_the_model_are_described() {
    let document = document();
    let all = names(&document);
    let mut lacking = Vec::new();
    let mut fields = 0;
    for path in files("src/report/model", "rs") {
        // The keys of what is flattened are those of its own fields.
        let code = code(&path).replace("#[serde(flatten)]\n    pub ", "");
        for line in code.lines() {
            let Some(field) = line.trim().strip_prefix("pub ").and_then(field) else {
                continue;
            };
            fields += 1;
            if !all.contains(field) {
                lacking.push(field.to_owned());
            }
        }
    }
    assert!(fields > 200, "{fields} fields");
    assert!(lacking.is_empty(), "not in docs/JSON.md: {lacking:#?}");
}

/// Keys of a value and all in it.
fn keys<'a>(value: &'a Value, out: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(members) => {
            for (key, member) in members {
                out.insert(key);
                if !(BY_FUNCTION.contains(&key.as_str()) && member.is_object()) {
                    keys(member, out);
                }
            }
        }
        Value::Array(rows) => rows.iter().for_each(|row| keys(row, out)),
        _ => {}
    }
}

#[test]
fn keys_of_golden_reports_are_described() {
    let document = document();
    let all = names(&document);
    for (path, report) in reports(Shown::default()) {
        let text = report::to_json(&report);
        let json: Value = serde_json::from_str(&text).expect("JSON");
        let mut found = BTreeSet::new();
        keys(&json, &mut found);
        let lacking: Vec<&str> = found.into_iter().filter(|key| !all.contains(key)).collect();
        let path = path.display();
        assert!(
            lacking.is_empty(),
            "{path}: not in docs/JSON.md: {lacking:?}"
        );
    }
}
