//! The cost of each file (open, stat, list, close) rather than of its bytes.

use super::{Answer, Look, look::rounded};
use crate::analysis::{Kind, files::SMALL_BYTES, words};

const KIND: Kind = Kind::SmallFiles;

/// Files that are looked up so many times as often as they are opened are not there to be read.
const LOOKS_UP: f64 = 5.0;

/// Size of a shard that is read in sequence: large enough that its open does not count (WebDataset's own advice is 100 MB to 1 GB).
const SHARD_BYTES: f64 = 256e6;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let rate = look.files_per_s(KIND, |time| time.opens);
        let lookups = look.files_per_s(KIND, |time| time.lookups);
        let mean = look.mean_file_bytes(KIND);
        evidence.insert("opens_per_s", rounded(rate));
        if let Some(mean) = mean {
            evidence.insert("mean_file_bytes", rounded(mean));
        }
        let places = look.places(KIND);
        let under = if places.is_empty() {
            String::new()
        } else {
            format!(" under {}", words::list(&places))
        };
        if lookups > rate * LOOKS_UP {
            evidence.insert("lookups_per_s", rounded(lookups));
            return (
                format!(
                    "{} looked files up (stat, readdir){under}: {lookups:.0} times a second{}",
                    look.who(KIND),
                    look.served_by(KIND),
                ),
                "look each file up once and keep what that says, or read one index of them all"
                    .to_owned(),
            );
        }
        let size = mean.map_or_else(String::new, |mean| format!(", mean {}", words::bytes(mean)));
        let slow = look.open_p99_ms(KIND).map_or_else(String::new, |ms| {
            evidence.insert("open_p99_ms", rounded(ms));
            format!(", p99 of an open {}", words::time(ms / 1e3))
        });
        let summary = format!(
            "{} opened {}files{under}: {rate:.0} opens a second{size}{slow}{}",
            look.who(KIND),
            if mean.is_some_and(|mean| mean < SMALL_BYTES) {
                "small "
            } else {
                ""
            },
            look.served_by(KIND),
        );
        let opened = rate * look.session.duration_s();
        evidence.insert("opens", rounded(opened.round()));
        let files = mean.map_or_else(
            || "these files".to_owned(),
            |mean| {
                format!(
                    "these files ({opened:.0} opens in {}, mean {})",
                    words::time(look.session.duration_s()),
                    words::bytes(mean)
                )
            },
        );
        let shard = mean.map_or_else(String::new, |mean| {
            let count = (SHARD_BYTES / mean.max(1.0)).clamp(10.0, 1e6);
            if count > opened {
                // How many files there are is not known: the same ones may be opened again.
                return ", many of them in each shard".to_owned();
            }
            format!(", about {count:.0} of them in each shard of 256 MB")
        });
        let advice = format!(
            "pack {files} into shards read in sequence (tar/WebDataset, Parquet, LMDB){shard}"
        );
        (summary, advice)
    })
}
