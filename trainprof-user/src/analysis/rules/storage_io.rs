//! Waiting for file bytes: cold reads, page faults on mapped files, a slow or network file system.

use serde_json::json;

use super::{
    Answer, Look,
    in_flight::{ahead, in_flight, wanted_rate},
    look::rounded,
};
use crate::analysis::{Kind, walk::is_served, words};

const KIND: Kind = Kind::StorageIo;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let places = look.places(KIND);
        let mut read = 0;
        let mut filled = 0;
        let mut served = false;
        for (fileset, _) in look.filesets(KIND) {
            let time = look.analysis.file_times.get(&fileset).copied().unwrap_or_default();
            read += time.read_bytes.max(time.filled_bytes);
            filled += time.filled_bytes;
            served |= look
                .session
                .filesets
                .get(&fileset)
                .and_then(|fact| fact.fs_type.as_deref())
                .is_some_and(is_served);
        }
        let rate = read as f64 / look.session.duration_s().max(1e-9);
        let cold = if read > 0 { filled as f64 / read as f64 } else { 0.0 };
        evidence.insert("bytes_per_s", rounded(rate));
        evidence.insert("not_cached_share", json!((cold.min(1.0) * 1e3).round() / 1e3));
        let at = if places.is_empty() {
            "files".to_owned()
        } else {
            format!("files under {}", words::list(&places))
        };
        let summary = format!(
            "{} waited for the bytes of {at}: {} a second{}{}",
            look.who(KIND),
            words::bytes(rate),
            if served || filled == 0 {
                String::new()
            } else {
                format!(", {} of them not in the page cache", words::percent(cold.min(1.0)))
            },
            look.served_by(KIND),
        );
        let parallel = look.trainer.cast.parallel();
        let advice = if parallel == 0 {
            let readers = ahead(look, KIND);
            evidence.insert("readers_needed", json!(readers));
            format!(
                "let DataLoader workers read ahead (about {readers} would keep up with the trainer, if the storage serves as many at a time), or move {at} to faster storage"
            )
        } else {
            let needed = wanted_rate(look, KIND, rate);
            evidence.insert("bytes_per_s_needed", rounded(needed));
            let workers = in_flight(look).map_or_else(
                || format!("more than {parallel}"),
                |(_, wanted)| format!("about {wanted:.0} instead of {parallel}"),
            );
            format!(
                "move {at} to faster or local storage (the trainer could use {} a second), or let {workers} workers have reads in flight (a latency, not a bandwidth, can be hidden that way)",
                words::bytes(needed)
            )
        };
        (summary, advice)
    })
}
