//! The cost of each file (open, stat, list, close) rather than of its bytes.

use super::{Answer, Look, look::rounded};
use crate::analysis::{Kind, words};

const KIND: Kind = Kind::SmallFiles;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let rate = look.opens_per_s(KIND);
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
        let size = mean.map_or_else(String::new, |mean| format!(", mean {}", words::bytes(mean)));
        let summary = format!(
            "{} opened small files{under}: {rate:.0} opens a second{size}{}",
            look.who(KIND),
            look.served_by(KIND),
        );
        let shard = mean.map_or_else(String::new, |mean| {
            let count = (256e6 / mean.max(1.0)).clamp(10.0, 1e6);
            format!(" (about {count:.0} of them in each 256 MB shard)")
        });
        let advice = format!(
            "pack these files into shards read in sequence (tar/WebDataset, Parquet, LMDB){shard}; without their cost {}",
            look.effect(KIND)
        );
        (summary, advice)
    })
}
