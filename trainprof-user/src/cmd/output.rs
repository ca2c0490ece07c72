//! Where records and reports go: the session, the recording, the JSON file, standard output.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, IsTerminal, Seek, Write},
    ops::RangeInclusive,
    os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use terminal_size::terminal_size_of;

use super::{Failure, cli::WatchArgs, progress::Progress, say};
use crate::{
    invoker,
    record::{Record, WriteError, Writer},
    report::{self, Report, Shown, gate},
    session::Session,
};

/// Every so many-th flush (one is an interval, about a second) the device is to take the recording: a power loss costs so much of it.
const WRITE_BACK_EVERY: u32 = 5;

/// Tables need the first, and lines longer than the last are hard to read. A file gets the last.
const COLUMNS: RangeInclusive<usize> = 80..=100;

/// Everything that a watch writes to. Files are opened before the watch, while we may still write anywhere.
pub struct Output {
    pub session: Session,
    pub progress: Progress,
    recording: Option<Writer>,
    flushes: u32,
    json: Option<JsonTarget>,
    shown: Shown,
    quiet: bool,
    fail_on: Vec<String>,
}

/// Names that stand for what others opened (also a shell's `/dev/fd/63`): links are followed there, and modes left alone.
const NOT_OURS: [&str; 4] = ["/dev/fd", "/dev/stdout", "/dev/stderr", "/proc"];

enum JsonTarget {
    Standard,
    File { file: File, path: PathBuf },
}

impl Output {
    /// Opens the files that were asked for.
    pub fn open(args: &WatchArgs) -> Result<Self, Failure> {
        if let (Some(recording), Some(json)) = (&args.output, &args.json)
            && are_one_file(recording, json)
        {
            return Err(Failure::input(format!(
                "the recording and the report would both be {}: one would take the other's place. Choose another file with --json",
                json.display()
            )));
        }
        let recording = args
            .output
            .as_deref()
            .map(Writer::create)
            .transpose()
            .map_err(Failure::input)?;
        let json = args.json.as_deref().map(open_json).transpose()?;
        Ok(Self {
            session: Session::default(),
            progress: Progress::default(),
            recording,
            flushes: 0,
            json,
            shown: Shown { top: args.top },
            quiet: args.quiet,
            fail_on: args.gate.fail_on.clone(),
        })
    }

    /// Takes records in: into the recording, and into the session.
    pub fn put(&mut self, records: &[Record]) {
        for record in records {
            if let Some(writer) = &mut self.recording {
                match writer.push(record) {
                    Ok(()) => {}
                    // The writer goes on after a record that it cannot store.
                    Err(error @ WriteError::Record { .. }) => {
                        say(format_args!("the recording lacks a record: {error}"));
                    }
                    Err(error) => {
                        say(format_args!(
                            "the recording ends here: {error}. The watch goes on."
                        ));
                    }
                }
            }
            self.session.apply(record);
        }
    }

    /// Lets what was recorded so far survive us, and now and then the machine.
    pub fn flush(&mut self) {
        self.flushes = self.flushes.wrapping_add(1);
        let to_device = self.flushes.is_multiple_of(WRITE_BACK_EVERY);
        if let Some(writer) = &mut self.recording
            && let Err(error) = match to_device {
                true => writer.write_back(),
                false => writer.flush_block(),
            }
        {
            say(format_args!(
                "the recording ends here: {error}. The watch goes on."
            ));
        }
    }

    /// Closes the recording and prints the report. A recording that could not be written whole is said so,
    /// and does not keep the report back. Gives the exit status that the findings deserve.
    pub fn finish(mut self) -> Result<u8, Failure> {
        let mut failed = None;
        if let Some(writer) = self.recording.take() {
            let path = writer.path().to_owned();
            if let Err(error) = writer.finish() {
                failed = Some(Failure::input(format!(
                    "the recording {} is not whole: {error}. `trainprof report` can read what is there",
                    path.display()
                )));
            }
        }
        let report = report::report(&self.session, self.shown);
        let mut to_standard = !self.quiet;
        match self.json.take() {
            Some(JsonTarget::File { mut file, path }) => {
                if let Err(error) = replace(&mut file, report::to_json(&report).as_bytes()) {
                    failed = Some(Failure::input(format!(
                        "cannot write the report to {}: {error}",
                        path.display()
                    )));
                }
            }
            Some(JsonTarget::Standard) => {
                to_standard = false;
                print(&report::to_json(&report))?;
            }
            None => {}
        }
        if to_standard {
            print(&report::to_text(&report, self.shown.top, columns()))?;
        }
        let status = judge(&report, &self.fail_on);
        failed.map_or(Ok(status), Err)
    }

    /// Whether there is somebody to show progress to.
    pub fn shows_progress(&self) -> bool {
        !self.quiet && io::stderr().is_terminal()
    }
}

/// The exit status by what was asked for with `--fail-on`; says what was found.
pub fn judge(report: &Report, fail_on: &[String]) -> u8 {
    let fired = gate::fired(report, fail_on);
    for (kind, summary) in &fired {
        say(format_args!("found {kind}: {summary}"));
    }
    u8::from(!fired.is_empty())
}

/// Columns of what is printed for reading: those of the terminal, within what the tables can use.
pub fn columns() -> usize {
    terminal_size_of(io::stdout()).map_or(*COLUMNS.end(), |(width, _)| {
        usize::from(width.0).clamp(*COLUMNS.start(), *COLUMNS.end())
    })
}

/// Writes to standard output; a reader that went away is no failure of ours.
pub fn print(text: &str) -> Result<(), Failure> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure::input(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
    }
}

fn open_json(path: &Path) -> Result<JsonTarget, Failure> {
    if path == Path::new("-") {
        return Ok(JsonTarget::Standard);
    }
    // What is there stays until the report is ready: hence no truncation yet.
    let is_own = !NOT_OURS.iter().any(|name| path.starts_with(name));
    let open = || -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.write(true).truncate(false).mode(0o600);
        if is_own {
            options.custom_flags(libc::O_NOFOLLOW);
        }
        if let Ok(new) = options.clone().create_new(true).open(path) {
            // A file system may know no owners.
            let _ = invoker::give(&new, path);
        }
        let file = options.create(true).open(path)?;
        if is_own && file.metadata()?.is_file() {
            file.set_permissions(Permissions::from_mode(0o600))?;
        }
        Ok(file)
    };
    let file = open().map_err(|error| {
        let error = match error.raw_os_error() {
            // What open(2) says of a link that is not to be followed.
            Some(libc::ELOOP) => "it is a symbolic link".to_owned(),
            _ => error.to_string(),
        };
        Failure::input(format!(
            "cannot write the report to {}: {error}. Choose another file with --json",
            path.display()
        ))
    })?;
    Ok(JsonTarget::File {
        file,
        path: path.to_owned(),
    })
}

/// Whether two names are of one file, which need not exist.
fn are_one_file(one: &Path, other: &Path) -> bool {
    if let (Ok(one), Ok(other)) = (fs::metadata(one), fs::metadata(other)) {
        return one.is_file() && (one.dev(), one.ino()) == (other.dev(), other.ino());
    }
    let whole = |path: &Path| {
        let folder = match path.parent()? {
            folder if folder.as_os_str().is_empty() => Path::new("."),
            folder => folder,
        };
        Some(folder.canonicalize().ok()?.join(path.file_name()?))
    };
    let (one, other) = (whole(one), whole(other));
    one.is_some() && one == other
}

fn replace(file: &mut File, bytes: &[u8]) -> io::Result<()> {
    if file.metadata()?.is_file() {
        file.set_len(0)?;
        file.rewind()?;
    }
    file.write_all(bytes)?;
    file.flush()
}
