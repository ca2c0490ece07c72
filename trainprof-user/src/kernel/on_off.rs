//! Taking the probes of system calls off and putting them back, while a watch goes on.

use aya::{
    Ebpf,
    programs::{BtfTracePoint, ProgramError, tp_btf::BtfTracePointLinkId},
};

use super::{CONTROL_CALLS, CONTROL_ENTRIES, CONTROL_TOUCHED_CALLS, KernelError, Probes, plan};

/// Whose system calls are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Counted {
    /// Those of every followed thread.
    #[default]
    All,
    /// Those of processes whose calls are noted one by one ([`Probes::touch`]): a call of another costs it about half.
    Touched,
    /// Nobody's: a call costs nothing.
    None,
}

impl Probes {
    /// Has the beginnings of system calls shown or not. Every call is counted at its end either way; only those
    /// whose beginning was shown have a length in time.
    pub fn show_entries(&mut self, shown: bool) -> Result<(), KernelError> {
        if shown == self.entries.is_some() {
            return Ok(());
        }
        if let Some(link) = self.entries.take() {
            // First of all nothing is expected to have had a beginning.
            self.set_control(CONTROL_ENTRIES, 0)?;
            return take_off(&mut self.ebpf, plan::ENTRIES, link);
        }
        self.entries = Some(put_back(&mut self.ebpf, plan::ENTRIES)?);
        let stretch = self.next_stretch();
        self.set_control(CONTROL_ENTRIES, stretch)
    }

    /// Says whose system calls are counted from now on. Unless all are, no beginnings are shown.
    pub fn count_calls(&mut self, counted: Counted) -> Result<(), KernelError> {
        if counted == self.counted {
            return Ok(());
        }
        // Should it fail on the way, another try does all of it.
        self.counted = Counted::None;
        if counted != Counted::All {
            self.show_entries(false)?;
            self.set_control(CONTROL_CALLS, 0)?;
        }
        let touched = match counted {
            Counted::Touched => self.next_stretch(),
            _ => 0,
        };
        self.set_control(CONTROL_TOUCHED_CALLS, touched)?;
        match (counted, self.ends.take()) {
            (Counted::None, Some(link)) => take_off(&mut self.ebpf, plan::ENDS, link)?,
            (Counted::None, None) => {}
            (_, Some(link)) => self.ends = Some(link),
            (_, None) => self.ends = Some(put_back(&mut self.ebpf, plan::ENDS)?),
        }
        if counted == Counted::All {
            let stretch = self.next_stretch();
            self.set_control(CONTROL_CALLS, stretch)?;
        }
        self.counted = counted;
        Ok(())
    }

    fn next_stretch(&mut self) -> u64 {
        self.stretch = self.stretch.wrapping_add(1).max(1);
        u64::from(self.stretch)
    }
}

/// A program on a tracepoint of its name.
fn program<'a>(
    ebpf: &'a mut Ebpf,
    name: &'static str,
) -> Result<&'a mut BtfTracePoint, KernelError> {
    ebpf.program_mut(name)
        .and_then(|program| program.try_into().ok())
        .ok_or(KernelError::NoMap(name))
}

fn refused(name: &'static str) -> impl Fn(ProgramError) -> KernelError {
    move |source| KernelError::Refused {
        program: name,
        tracepoint: name,
        source: Box::new(source),
    }
}

fn put_back(ebpf: &mut Ebpf, name: &'static str) -> Result<BtfTracePointLinkId, KernelError> {
    program(ebpf, name)?.attach().map_err(refused(name))
}

fn take_off(
    ebpf: &mut Ebpf,
    name: &'static str,
    link: BtfTracePointLinkId,
) -> Result<(), KernelError> {
    program(ebpf, name)?.detach(link).map_err(refused(name))
}
