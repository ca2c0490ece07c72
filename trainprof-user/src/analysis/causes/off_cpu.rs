//! Waits that nobody of the job ended: told by what was waited for.

use trainprof_common::{op::Class, thread::WakerKind};

use super::{Detail, Scene};
use crate::{
    analysis::{
        facts::is_on_purpose,
        kind::Kind,
        running::{Call, call, locks_files},
    },
    record::fact::{ObjectFact, WakerFact},
    session::{
        WaitId,
        kind::{WaitKind, wait_kind},
        roles::exchanges,
    },
};

impl Scene<'_> {
    pub(super) fn waiting(
        &self,
        tid: u32,
        nr: i16,
        object: ObjectFact,
        waker: WakerFact,
    ) -> (Kind, Detail, f64) {
        let session = self.facts.session;
        let id = WaitId { nr, object, waker };
        let outsider = if is_on_purpose(waker.kind) && session.thread(waker.tid).is_none() {
            waker.tid
        } else {
            0
        };
        let mut detail = Detail {
            fileset: object.fileset,
            tid,
            outsider,
            ..Detail::default()
        };
        let producer = self.is_producer(tid);
        let kind = match wait_kind(&id) {
            _ if locks_files(nr) => Kind::Serialization,
            WaitKind::File | WaitKind::Uring if call(nr) == Call::Write && !producer => {
                Kind::Checkpoint
            }
            WaitKind::File
                if call(nr) == Call::Meta && !producer && self.files.are_state(object.fileset) =>
            {
                Kind::Checkpoint
            }
            WaitKind::File | WaitKind::Uring => self.files.of(object.fileset, tid),
            WaitKind::Fault if object.fileset != 0 => self.files.of(object.fileset, tid),
            WaitKind::Fault => Kind::AllocationChurn,
            WaitKind::Sleep => Kind::Sleep,
            WaitKind::Stopped => Kind::Stopped,
            // A time-out on what nobody of the job ends is a pause; else it would be idle.
            WaitKind::Futex if producer && waker.kind == WakerKind::Interrupt as u8 => Kind::Sleep,
            WaitKind::Socket => {
                detail.socket = object.id;
                self.network(tid, outsider)
            }
            WaitKind::Poll | WaitKind::Other
                if waker.kind == WakerKind::Softirq as u8
                    || object.class == Class::Socket as u8
                    || waker.kind == WakerKind::Sender as u8 =>
            {
                if object.class == Class::Socket as u8 {
                    detail.socket = object.id;
                }
                self.network(tid, outsider)
            }
            // Who is slow to take what is written makes no batches.
            WaitKind::Pipe if call(nr) == Call::Write => Kind::Unknown,
            WaitKind::Pipe | WaitKind::Poll | WaitKind::Futex if outsider != 0 && !producer => {
                if self.is_twin(outsider) {
                    Kind::Communication
                } else {
                    Kind::InputCpu
                }
            }
            _ => Kind::Unknown,
        };
        (kind, detail, 1.0)
    }

    /// Sockets: with another rank when much goes out and as much comes in, else with a store of data or a service. A program of this
    /// host that is another one than the trainer's is no rank of its.
    fn network(&self, tid: u32, outsider: u32) -> Kind {
        if self.is_producer(tid) {
            return Kind::NetworkIo;
        }
        if !self.cast.ranks.is_empty() || self.is_twin(outsider) {
            return Kind::Communication;
        }
        let own = |tid: u32| !self.is_producer(tid);
        if !self.is_known(outsider) && exchanges(self.facts.session, self.cast.trainer, own) {
            Kind::Communication
        } else {
            Kind::NetworkIo
        }
    }

    /// Whether it is known which program a thread outside the job runs.
    fn is_known(&self, outsider: u32) -> bool {
        let session = self.facts.session;
        matches!(session.outsiders.get(&outsider), Some((Some(pid), _)) if session.host.outsiders.contains_key(pid))
    }

    /// Whether a thread outside the job runs the trainer's own command: another rank.
    fn is_twin(&self, outsider: u32) -> bool {
        let session = self.facts.session;
        let Some((Some(pid), _)) = session.outsiders.get(&outsider) else {
            return false;
        };
        let own = session
            .processes
            .get(&self.cast.trainer)
            .and_then(|process| process.seen.facts.as_ref())
            .map(|facts| &facts.command);
        match (session.host.outsiders.get(pid), own) {
            (Some(theirs), Some(own)) => {
                !own.is_empty() && theirs.first() == own.first() && program(theirs) == program(own)
            }
            _ => false,
        }
    }
}

/// The first argument that names a program or module, options left out.
fn program(command: &[String]) -> Option<&String> {
    command.iter().skip(1).find(|word| !word.starts_with('-'))
}
