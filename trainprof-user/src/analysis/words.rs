//! How numbers and things are said.

use crate::session::Session;

/// A share as a whole percentage.
pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Bytes with a unit.
pub fn bytes(n: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let mut n = n;
    let mut unit = 0;
    while n >= 1000.0 && unit < UNITS.len() - 1 {
        n /= 1000.0;
        unit += 1;
    }
    if unit == 0 || n >= 100.0 {
        format!("{n:.0} {}", UNITS[unit])
    } else {
        format!("{n:.1} {}", UNITS[unit])
    }
}

/// A length of time with a unit.
pub fn time(seconds: f64) -> String {
    if seconds < 0.001 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 120.0 {
        format!("{seconds:.1} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

/// A speed-up factor.
pub fn factor(bound: f64) -> String {
    if bound.is_finite() && bound < 100.0 {
        format!("{bound:.1}x")
    } else {
        "100x or more".to_owned()
    }
}

/// A directory with its file system, for a sentence.
pub fn place(session: &Session, fileset: u32) -> Option<String> {
    let fact = session.filesets.get(&fileset)?;
    let directory = fact.directory.clone()?;
    Some(match &fact.fs_type {
        Some(fs_type) => format!("{directory} ({fs_type})"),
        None => directory,
    })
}

/// A list in a sentence, at most three.
pub fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first, second] => format!("{first} and {second}"),
        [first, second, rest @ ..] if rest.len() == 1 => {
            format!("{first}, {second} and {}", rest[0])
        }
        [first, second, rest @ ..] => format!("{first}, {second} and {} more", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(percent(0.614), "61 %");
        assert_eq!(bytes(98_000.0), "98.0 KB");
        assert_eq!(bytes(512.0), "512 B");
        assert_eq!(bytes(1.25e9), "1.2 GB");
        assert_eq!(time(0.000_4), "400 µs");
        assert_eq!(time(0.412), "412 ms");
        assert_eq!(time(600.0), "10 min");
        assert_eq!(factor(2.41), "2.4x");
        assert_eq!(factor(f64::INFINITY), "100x or more");
        let names: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        assert_eq!(list(&names[..2]), "a and b");
        assert_eq!(list(&names[..3]), "a, b and c");
        assert_eq!(list(&names), "a, b and 2 more");
    }
}
