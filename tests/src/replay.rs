//! Live and replayed, a report is the same, byte for byte.

use crate::product::{Finished, trainprof};
use crate::workload::os;

/// The recording of a watch with `--top 1000` gives the same JSON and the same text as the watch itself.
pub fn same_bytes(live: &Finished) {
    let json = trainprof(os(&[
        &"report",
        &live.recording,
        &"--format",
        &"json",
        &"--top",
        &"1000",
    ]));
    assert_eq!(json.code(), 0, "{}", json.stderr);
    assert_same(&live.json, json.stdout.as_bytes(), "report --format json");
    let text = trainprof(os(&[&"report", &live.recording, &"--top", &"1000"]));
    assert_same(
        live.stdout.as_bytes(),
        text.stdout.as_bytes(),
        "the text report",
    );
}

fn assert_same(live: &[u8], replayed: &[u8], what: &str) {
    if live == replayed {
        return;
    }
    let (live, replayed) = (
        String::from_utf8_lossy(live),
        String::from_utf8_lossy(replayed),
    );
    let at = live
        .bytes()
        .zip(replayed.bytes())
        .take_while(|(a, b)| a == b)
        .count();
    let around =
        |text: &str| -> String { text.chars().skip(at.saturating_sub(80)).take(200).collect() };
    panic!(
        "{what} differs from the live one at byte {at}:\nlive:     {}\nreplayed: {}",
        around(&live),
        around(&replayed)
    );
}
