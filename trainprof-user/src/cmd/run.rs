//! `trainprof run`: a child of ours, watched from before its first instruction.
//!
//! The command's own status comes first: a build that fails must not look like a finding. Only where the command
//! succeeded does `--fail-on` decide.

use super::{
    Failure,
    cli::RunArgs,
    launch::{self, Launched},
    output::Output,
    say,
    stop::Signals,
    watch::{self, Job},
};

/// Launches and watches a command; gives the command's own exit status.
pub fn run(args: &RunArgs) -> Result<u8, Failure> {
    watch::check_place()?;
    crate::privilege::check_can_profile().map_err(Failure::host)?;
    let mut output = Output::open(&args.watch)?;
    let mut child = launch::held(&args.command)?;
    let outcome = watch::with_runtime(async {
        let mut signals = Signals::for_launcher()?;
        let mut begun = watch::begin(&[child.pid()], true, &args.watch)?;
        child.release();
        let job = Job::Ours(&mut child);
        watch::until_done(
            &mut begun,
            &mut output,
            args.watch.duration,
            &mut signals,
            job,
        )
        .await?;
        // The probes go before the command does: from here on it runs alone.
        drop(begun);
        let mut found = 0;
        if let Some(error) = child.exec_error() {
            say(format_args!(
                "cannot run {}: {error}",
                args.command[0].display()
            ));
        } else {
            match output.finish() {
                Ok(status) => found = status,
                Err(failure) => say(&failure.message),
            }
        }
        // A time that was asked for ends the watch, not the command.
        Ok(match watch::wait_for(&mut child, &mut signals).await {
            0 => found,
            status => status,
        })
    });
    outcome.or_else(|failure| match child.abandon() {
        // It never began: that is our failure, not the command's.
        Launched::Never => Err(failure),
        Launched::Ended(status) => {
            say(&failure.message);
            Ok(status)
        }
    })
}
