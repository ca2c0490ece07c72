//! `trainprof attach`.

use super::{
    Failure,
    cli::AttachArgs,
    output::Output,
    stop::Signals,
    watch::{self, Job},
};

/// Watches running processes.
pub fn attach(args: &AttachArgs) -> Result<u8, Failure> {
    watch::check(&args.pids)?;
    let mut output = Output::open(&args.watch)?;
    watch::with_runtime(async {
        let mut signals = Signals::for_watch()?;
        let mut begun = watch::begin(&args.pids, false, &args.watch)?;
        watch::until_done(
            &mut begun,
            &mut output,
            args.watch.duration,
            &mut signals,
            Job::Foreign,
        )
        .await
    })?;
    output.finish()
}
