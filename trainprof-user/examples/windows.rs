//! Prints what a recording has on windows of allocation probes and on what they cost, one JSON object a line:
//! `windows REC`. Times are nanoseconds of the kernel's monotonic clock.

use std::error::Error;

use serde_json::json;
use trainprof_user::record::{Reader, Record};

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: windows REC")?;
    let mut reader = Reader::open(path)?;
    while let Some(record) = reader.next_record::<Record>()? {
        let line = match record {
            Record::AllocWindow(fact) => json!({ "window": fact }),
            Record::Governor(fact) => json!({ "governor": fact }),
            Record::StartCost(fact) => json!({ "start": fact }),
            Record::AllocCalibration(fact) => json!({ "calibration": fact }),
            _ => continue,
        };
        println!("{line}");
    }
    Ok(())
}
