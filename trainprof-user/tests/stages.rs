//! Data flows one way: a stage never imports a later one, and what derives never touches the kernel.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Stages in the order in which data passes them.
const ORDER: [&str; 16] = [
    "time",
    "demangle",
    "env",
    "arch",
    "invoker",
    "privilege",
    "doctor",
    "kernel",
    "event",
    "record",
    "gpu",
    "source",
    "session",
    "analysis",
    "report",
    "cmd",
];

/// Stages that are pure functions of records, and what they may not know.
const PURE: [&str; 3] = ["session", "analysis", "report"];
const IMPURE: [&str; 4] = ["kernel", "gpu", "source", "privilege"];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a folder of sources") {
        let path = entry.expect("an entry").path();
        // Tests may look anywhere.
        if path.file_stem().is_some_and(|name| name == "tests") {
            continue;
        }
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

/// Nor may they ask for anything that is not in the records: parts of the standard library, and the C library.
const ASKING: [&str; 8] = [
    "fs",
    "net",
    "io",
    "env",
    "process",
    "thread",
    "Instant",
    "SystemTime",
];

/// What is compiled into the program, without comments.
fn code(text: &str) -> String {
    // Tests may look anywhere.
    text.split("#[cfg(test)]")
        .next()
        .unwrap_or("")
        .lines()
        .map(|line| line.split("//").next().unwrap_or(""))
        .collect::<Vec<_>>()
        .join(" ")
}

/// What a file asks for beside the records, as `std::fs`, inside the braces of `std::{…}`, or as `libc::…`.
fn asks(text: &str) -> Vec<&'static str> {
    let code = code(text);
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_alphanumeric() && c != '_')
            .map(str::to_owned)
            .collect()
    };
    let mut found = Vec::new();
    let parts: Vec<&str> = code.split("std::").collect();
    for pair in parts.windows(2) {
        // A `use` goes to the end of its statement, a path to the end of its words and colons.
        let end = if pair[0].ends_with("use ") {
            pair[1].find(';')
        } else {
            pair[1].find(|c: char| !c.is_alphanumeric() && c != '_' && c != ':')
        };
        let named = words(&pair[1][..end.unwrap_or(pair[1].len())]);
        let asked = ASKING.iter().copied();
        found.extend(asked.filter(|asked| named.iter().any(|word| word == asked)));
    }
    // Our own clock, and what prints.
    for asked in [
        "libc::",
        "env::clock",
        "clock::now",
        "println!",
        "eprintln!",
    ] {
        if code.contains(asked) {
            found.push(asked);
        }
    }
    found
}

/// Stages that a file names after `crate::`, also inside braces.
fn named(text: &str) -> Vec<&'static str> {
    let code = code(text);
    let mut out = Vec::new();
    for part in code.split("crate::").skip(1) {
        let list = match part.strip_prefix('{') {
            Some(list) => list.split(';').next().unwrap_or(""),
            None => part
                .split(|c: char| !c.is_alphanumeric() && c != '_')
                .next()
                .unwrap_or(""),
        };
        let mut depth = 0;
        let mut word = String::new();
        for c in list.chars().chain([',']) {
            if !(c.is_alphanumeric() || c == '_') {
                if depth == 0
                    && let Some(stage) = ORDER.iter().find(|stage| **stage == word)
                {
                    out.push(*stage);
                }
                word.clear();
            }
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                c if c.is_alphanumeric() || c == '_' => word.push(c),
                _ => {}
            }
        }
    }
    out
}

#[test]
fn no_stage_imports_a_later_one() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut files = Vec::new();
    sources(&root, &mut files);
    let mut checked = 0;
    for file in files {
        let relative = file.strip_prefix(&root).expect("below the root");
        let first = relative
            .components()
            .next()
            .expect("a component")
            .as_os_str();
        let stage = Path::new(first)
            .file_stem()
            .and_then(|s| s.to_str())
            .expect("a name");
        let Some(own) = ORDER.iter().position(|s| *s == stage) else {
            assert!(
                matches!(stage, "lib" | "main"),
                "{stage} is no stage: put it into ORDER"
            );
            continue;
        };
        let text = fs::read_to_string(&file).expect("a source");
        if PURE.contains(&stage) {
            let asks = asks(&text);
            assert!(
                asks.is_empty(),
                "{} derives, and asks for {asks:?}",
                relative.display()
            );
        }
        for import in named(&text) {
            checked += 1;
            let other = ORDER.iter().position(|s| *s == import).expect("a stage");
            assert!(
                other <= own,
                "{} imports the later stage {import}",
                relative.display()
            );
            assert!(
                !(PURE.contains(&stage) && IMPURE.contains(&import)),
                "{} derives, and imports {import}",
                relative.display()
            );
        }
    }
    assert!(
        checked > 20,
        "only {checked} imports were found: does this test still see any?"
    );
}

#[test]
fn what_is_asked_for_is_found() {
    assert_eq!(asks("use std::time::{Duration, Instant};"), ["Instant"]);
    assert_eq!(
        asks("use std::{\n collections::BTreeMap,\n fs,\n};"),
        ["fs"]
    );
    assert_eq!(asks("fn f() { std::thread::sleep(x) }"), ["thread"]);
    assert_eq!(asks("let n = unsafe { libc::getpid() };"), ["libc::"]);
    assert_eq!(
        asks("let now = crate::env::clock::now();"),
        ["env::clock", "clock::now"]
    );
    assert!(asks("use std::{fmt, time::Duration}; // std::fs").is_empty());
}

#[test]
fn imports_are_found() {
    assert_eq!(named("use crate::kernel::Probes;"), ["kernel"]);
    assert_eq!(
        named("use crate::{\n record::{Record, time},\n session,\n};"),
        ["record", "session"]
    );
    assert_eq!(
        named("// use crate::kernel\nfn f() { crate::report::x() }"),
        ["report"]
    );
}
