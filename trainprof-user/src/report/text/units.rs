//! How numbers and names are written in the text report, and how they fit into its lines.

use std::fmt::{self, Write};

/// Text in lines that fit into so many columns.
pub struct Page {
    text: String,
    pub width: usize,
}

impl Page {
    pub const fn new(width: usize) -> Self {
        Self {
            text: String::new(),
            width,
        }
    }

    /// All of it; what is still longer than a line is cut off.
    pub fn into_lines(self) -> String {
        self.text
            .lines()
            .map(|line| clip(line.trim_end(), self.width) + "\n")
            .collect()
    }
}

impl Write for Page {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.text.write_str(text)
    }
}

pub fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Bytes in the largest unit that keeps three digits.
pub fn bytes(n: f64) -> String {
    let mut value = n;
    for unit in ["B", "KB", "MB", "GB", "TB"] {
        if value < 999.5 {
            return if unit == "B" || value >= 99.95 {
                format!("{value:.0} {unit}")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1000.0;
    }
    format!("{value:.1} PB")
}

pub fn micros(us: f64) -> String {
    if us < 999.5 {
        format!("{us:.0} µs")
    } else {
        format!("{:.1} ms", us / 1e3)
    }
}

/// A number and what it counts: "1 worker", "2 workers".
pub fn count(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// A rate that is known with a standard error, in as many digits as that leaves.
pub fn estimate(rate: f64, error: f64) -> String {
    if rate <= 0.0 {
        return "0".to_owned();
    }
    let uncertain = (error / rate).clamp(1e-6, 1.0);
    // The digit that the error falls into is the last one that says something.
    let digits = 1.0 - uncertain.log10().floor();
    let place = 10f64.powf((rate.log10().floor() + 1.0 - digits).max(0.0));
    let rounded = (rate / place).round() * place;
    match give_or_take(uncertain) {
        none if none.is_empty() => format!("{rounded:.0}"),
        error => format!("about {rounded:.0}{error}"),
    }
}

/// What follows a number that is known with such a relative standard error (0–1): nothing, where that is small.
pub fn give_or_take(uncertain: f64) -> String {
    if uncertain < 0.005 {
        String::new()
    } else {
        format!(" ± {}", percent(uncertain.min(1.0)))
    }
}

/// A share (0–1) with its standard error in points, where there is one to speak of.
pub fn share(share: f64, error: f64) -> String {
    if error < 0.005 {
        percent(share)
    } else {
        format!("{} ± {:.0}", percent(share), 100.0 * error)
    }
}

/// Text in lines that fit, the first one after `mark`, the others below it.
pub fn wrapped(out: &mut Page, mark: &str, text: &str) -> std::fmt::Result {
    let indent = mark.chars().count();
    let mut line = mark.to_owned();
    let mut filled = indent;
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if filled > indent && filled + 1 + length > out.width {
            writeln!(out, "{line}")?;
            line = " ".repeat(indent);
            filled = indent;
        }
        if filled > indent {
            line.push(' ');
            filled += 1;
        }
        line.push_str(word);
        filled += length;
    }
    writeln!(out, "{line}")
}

/// The beginning of a text, at most `width` characters.
pub fn clip(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars()
        .take(width.saturating_sub(1))
        .chain(['…'])
        .collect()
}

/// The end of a text, at most `width` characters.
pub fn clip_left(text: &str, width: usize) -> String {
    let count = text.chars().count();
    if count <= width {
        return text.to_owned();
    }
    std::iter::once('…')
        .chain(text.chars().skip(count + 1 - width))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units() {
        for (n, text) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (1000.0, "1.0 KB"),
            (98_000.0, "98.0 KB"),
            (1.5e9, "1.5 GB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!(micros(12.4), "12 µs");
        assert_eq!(micros(38_000.0), "38.0 ms");
        assert_eq!(count(1, "worker", "workers"), "1 worker");
        assert_eq!(count(0, "worker", "workers"), "0 workers");
    }

    #[test]
    fn estimates_have_no_more_digits_than_are_known() {
        for (rate, error, text) in [
            (464_718.0, 173_469.0, "about 460000 ± 37 %"),
            (53_681.0, 1_086.0, "about 53700 ± 2 %"),
            (1_234_567.0, 20.0, "1234570"),
            (7.0, 7.0, "about 7 ± 100 %"),
            (0.0, 3.0, "0"),
        ] {
            assert_eq!(estimate(rate, error), text);
        }
    }

    #[test]
    fn clipping_keeps_the_width() {
        assert_eq!(clip("abcdef", 4), "abc…");
        assert_eq!(clip_left("abcdef", 4), "…def");
        assert_eq!(clip_left("abc", 4), "abc");
    }

    #[test]
    fn long_text_is_wrapped_and_not_cut() {
        let mut page = Page::new(80);
        let text = "word ".repeat(60);
        wrapped(&mut page, "  do: ", &text).expect("a page takes all");
        let out = page.into_lines();
        assert!(out.lines().all(|line| line.chars().count() <= 80));
        assert!(
            out.lines()
                .skip(1)
                .all(|line| line.starts_with("      word"))
        );
        assert_eq!(out.matches("word").count(), 60);
    }
}
