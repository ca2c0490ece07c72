//! Files of the form `KEY NUMBER …` on each line: /proc/PID/status, /proc/meminfo, memory.stat and the like.

/// The number after the key on the first line that begins with it; a colon belongs to the key.
pub(super) fn number(text: &str, key: &str) -> Option<u64> {
    value(text, key)?.parse().ok()
}

/// The first word after the key on the first line that begins with it.
pub(super) fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == key).then(|| words.next())?
    })
}

/// As [`number`], of a line whose unit is kB (1024 bytes), in bytes.
pub(super) fn kilobytes(text: &str, key: &str) -> Option<u64> {
    number(text, key)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_keys_only() {
        let text =
            "cache 5\ntotal_cache 7\nfile_mapped 1\nfile 9 x\nRssAnon:\t     112 kB\n\nodd\n";
        for (key, value) in [
            ("cache", Some(5)),
            ("total_cache", Some(7)),
            ("file", Some(9)),
            ("RssAnon:", Some(112)),
            ("RssAnon", None),
            ("odd", None),
            ("", None),
        ] {
            assert_eq!(number(text, key), value, "{key}");
        }
        assert_eq!(kilobytes(text, "RssAnon:"), Some(112 * 1024));
        assert_eq!(kilobytes("x 18446744073709551615", "x"), None);
        assert_eq!(number("x -1", "x"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in ".*", key in ".{0,8}") {
            let _ = kilobytes(&text, &key);
        }
    }
}
