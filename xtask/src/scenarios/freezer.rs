//! Stops the processes of a job all at once and lets them go on, by a control group. Signals would not do: they reach
//! one process after the other, and a parent is told that its child stopped.

use std::{fs, path::Path, time::Duration};

use anyhow::Result;

use super::{group::Group, interrupt};

const FREEZER: &str = "freezer";
const STATE: &str = "freezer.state";

pub struct Freezer(Group);

impl Freezer {
    pub fn new(name: &str) -> Result<Self> {
        Ok(Self(Group::new(FREEZER, name)?))
    }

    pub fn dir(&self) -> &Path {
        self.0.dir()
    }

    /// Comes back when nothing runs any more: a process that waits for a disk or a file server stops after that.
    pub fn freeze(&self) -> Result<()> {
        self.0.set(STATE, "FROZEN")?;
        interrupt::wait_for("freezing a job", Duration::from_secs(10), || {
            Ok(self.is_frozen()?.then_some(()))
        })
    }

    pub fn thaw(&self) -> Result<()> {
        self.0.set(STATE, "THAWED")
    }

    pub fn is_frozen(&self) -> Result<bool> {
        Ok(fs::read_to_string(self.dir().join(STATE))?.trim() == "FROZEN")
    }
}

/// Lets what is in a group go on, if it is a freezer: frozen processes do not die.
pub fn thaw(dir: &Path) {
    let state = dir.join(STATE);
    if state.exists() {
        let _ = fs::write(state, "THAWED");
    }
}
