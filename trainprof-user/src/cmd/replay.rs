//! `trainprof report`: the same code as the live path, fed from a file.

use super::{
    Failure,
    cli::{Format, ReportArgs},
    output::{columns, judge, print},
    say,
};
use crate::{
    record::{Reader, Record},
    report::{self, Shown},
    session::Session,
};

/// Prints the report of a recording.
pub fn report(args: &ReportArgs) -> Result<u8, Failure> {
    let mut reader = Reader::open(&args.recording).map_err(Failure::input)?;
    let mut session = Session::default();
    while let Some(record) = reader.next_record::<Record>().map_err(Failure::input)? {
        session.apply(&record);
    }
    if let Some(note) = reader.completeness().note() {
        say(format_args!("{}: {note}", args.recording.display()));
        session.missing.push(("recording".to_owned(), note));
    }
    let report = report::report(&session, Shown { top: args.top });
    print(&match args.format {
        Format::Text => report::to_text(&report, args.top, columns()),
        Format::Json => report::to_json(&report),
    })?;
    Ok(judge(&report, &args.gate.fail_on))
}
