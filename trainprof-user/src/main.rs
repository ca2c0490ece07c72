//! The `trainprof` command.

use std::process::ExitCode;

use clap::Parser as _;
use trainprof_user::cmd::{self, cli::Cli};

fn main() -> ExitCode {
    // A file-size limit (setrlimit(2)) is to be an error of the write that meets it, not our end.
    // SAFETY: no handler is involved.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("TRAINPROF_LOG")
                .unwrap_or_else(|_| "warn".into()),
        )
        .with_writer(std::io::stderr)
        .with_target(false)
        // It would say so on standard error, and panic where that cannot be written.
        .log_internal_errors(false)
        .init();
    match cmd::main(Cli::parse()) {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            cmd::say(&failure.message);
            ExitCode::from(failure.status)
        }
    }
}
