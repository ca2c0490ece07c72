//! Which of the findings that somebody wants to be told of by exit status are in a report.

use super::Report;
use crate::analysis::{Kind, rules};

/// A cause must be found in a watch whose verdict is at least this sure.
const MIN_CONFIDENCE: f64 = 0.5;
/// The verdict that is no cause.
const INCONCLUSIVE: &str = "inconclusive";

/// Every name that can be asked for: the findings, and the verdict without a cause.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    rules::RULES
        .iter()
        .map(|(name, _)| *name)
        .chain([INCONCLUSIVE])
}

/// What was asked for and is in the report: its kind, and what the report says of it.
///
/// Findings beside the verdict are there only when their own statistics carry them. A cause counts when the verdict of
/// the same watch is sure enough, whether or not it is the verdict itself.
pub fn fired<'a>(report: &'a Report, asked: &[String]) -> Vec<(&'a str, &'a str)> {
    let verdict = report.verdict.as_ref();
    let sure = verdict.is_some_and(|verdict| verdict.confidence >= MIN_CONFIDENCE);
    let mut out: Vec<(&str, &str)> = report
        .findings
        .iter()
        .filter(|finding| asked.iter().any(|kind| kind == finding.kind))
        .filter(|finding| sure || !is_cause(finding.kind))
        .map(|finding| (finding.kind, finding.summary.as_str()))
        .collect();
    let open = verdict.is_none_or(|verdict| verdict.bottleneck == INCONCLUSIVE);
    if open && asked.iter().any(|kind| kind == INCONCLUSIVE) {
        let summary = verdict.map_or("too little was seen", |verdict| verdict.summary.as_str());
        out.push((INCONCLUSIVE, summary));
    }
    out
}

fn is_cause(kind: &str) -> bool {
    Kind::CAUSES.iter().any(|cause| cause.name() == kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        report::{
            Shown,
            model::{FindingRow, VerdictRow},
            report,
        },
        session::Session,
    };

    fn with(kind: &'static str, confidence: f64) -> Report {
        let mut report = report(&Session::default(), Shown::default());
        report.verdict = (confidence > 0.0).then(|| VerdictRow {
            bottleneck: "compute",
            share: None,
            share_of: "trainer-wall-time",
            speedup_bound: None,
            summary: String::new(),
            confidence,
        });
        report.findings = vec![FindingRow {
            kind,
            share: None,
            evidence: [].into(),
            summary: "so it is".to_owned(),
            advice: String::new(),
            effect: None,
        }];
        report
    }

    #[test]
    fn what_was_asked_for_fires_when_it_is_sure() {
        let asked = |kinds: &[&str]| -> Vec<String> {
            assert!(
                kinds
                    .iter()
                    .all(|k| super::kinds().any(|known| known == *k))
            );
            kinds.iter().map(|k| (*k).to_owned()).collect()
        };
        let memory = asked(&["storage-io", "memory-growth"]);
        assert_eq!(
            fired(&with("memory-growth", 0.0), &memory),
            [("memory-growth", "so it is")]
        );
        assert_eq!(fired(&with("fd-growth", 1.0), &memory), []);
        assert_eq!(fired(&with("storage-io", 0.2), &memory), []);
        assert_eq!(fired(&with("storage-io", 0.9), &memory).len(), 1);
        assert_eq!(fired(&with("storage-io", 0.9), &[]), []);
        let open = asked(&["inconclusive"]);
        assert_eq!(fired(&with("fd-growth", 0.0), &open).len(), 1);
        assert_eq!(fired(&with("fd-growth", 1.0), &open), []);
    }
}
