//! Ctrl-C ends the suite in order: whatever waits gives up, and what was set up is taken down on the way out.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Result, bail};

static STOP: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: libc::c_int) {
    STOP.store(true, Ordering::Relaxed);
}

pub fn install() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores to an atomic, which may be done in a signal handler.
        unsafe { libc::signal(signal, on_signal as *const () as libc::sighandler_t) };
    }
}

pub fn check() -> Result<()> {
    if STOP.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// Asks again and again, 20 ms apart, until there is an answer.
pub fn wait_for<T>(
    what: &str,
    limit: Duration,
    mut ask: impl FnMut() -> Result<Option<T>>,
) -> Result<T> {
    let begun = Instant::now();
    loop {
        check()?;
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if begun.elapsed() > limit {
            bail!("{what} took more than {} s", limit.as_secs());
        }
        thread::sleep(Duration::from_millis(20));
    }
}
