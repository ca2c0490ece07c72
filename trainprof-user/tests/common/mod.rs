//! Reports of the golden recordings.

use std::{
    fs,
    path::{Path, PathBuf},
};

use trainprof_user::{
    record::{Record, reader::Reader},
    report::{self, Report, Shown},
    session::Session,
};

/// Each recording with its report, in order of their names.
pub fn reports(shown: Shown) -> Vec<(PathBuf, Report)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden");
    let mut out = Vec::new();
    for entry in fs::read_dir(folder).expect("tests/golden") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|ext| ext != "rec") {
            continue;
        }
        let mut reader = Reader::open(&path).expect("a recording");
        let mut session = Session::default();
        while let Some(record) = reader.next_record::<Record>().expect("a record") {
            session.apply(&record);
        }
        out.push((path, report::report(&session, shown)));
    }
    assert!(!out.is_empty());
    out.sort_by(|a, b| a.0.cmp(&b.0));
    out
}
