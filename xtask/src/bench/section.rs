//! Parts of a document that benchmarks write, each between two marks that do not show, so that none overwrites another's
//! nor what people wrote around them.

use std::path::Path;

use anyhow::{Context, Result};

/// Puts a benchmark's text into a document in place of what it put there before; at the end when there is none yet.
pub fn write(path: &Path, name: &str, text: &str) -> Result<()> {
    let old = match std::fs::read_to_string(path) {
        Ok(old) => old,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => {
            return Err(error).with_context(|| format!("cannot read {}", path.display()));
        }
    };
    std::fs::write(path, replace(&old, name, text))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn replace(old: &str, name: &str, text: &str) -> String {
    let begin = format!("<!-- begin: cargo xtask bench {name} -->\n");
    let end = format!("<!-- end: cargo xtask bench {name} -->\n");
    let section = format!("{begin}\n{}\n\n{end}", text.trim());
    if let Some((before, rest)) = old.split_once(&begin)
        && let Some((_, after)) = rest.split_once(&end)
    {
        return format!("{before}{section}{after}");
    }
    let before = old.trim_end();
    if before.is_empty() {
        section
    } else {
        format!("{before}\n\n{section}")
    }
}

#[cfg(test)]
mod tests {
    use super::replace;

    #[test]
    fn each_has_its_own_place() {
        let first = replace("# Title\n\nWords.\n", "a", "one\n");
        assert!(first.starts_with("# Title\n\nWords.\n\n<!-- begin"));
        let both = replace(&first, "b", "two");
        let again = replace(&both, "a", "three\n\n");
        assert!(!again.contains("one") && again.contains("three"));
        assert!(again.find("three") < again.find("two"));
        assert!(again.starts_with("# Title\n\nWords.\n\n<!-- begin"));
    }

    #[test]
    fn writing_twice_changes_nothing() {
        let once = replace("text\n", "a", "one");
        assert_eq!(replace(&once, "a", "one"), once);
        assert!(replace("", "a", "one").starts_with("<!-- begin"));
    }
}
