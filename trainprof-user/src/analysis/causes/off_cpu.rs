//! Waits that nobody of the job ended: told by what was waited for.

use trainprof_common::{arch, op::Class, thread::WakerKind};

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
        kind::{WaitKind, is_aio, wait_kind},
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
        let producer = self.cast.makes_batches(tid);
        // Of several files at once: of who hardly writes any, those that it reads.
        let activity = session.thread(tid).map(|thread| thread.activity);
        let writes = activity.is_some_and(|activity| activity.writes_state());
        let ring = arch::syscall_name(nr) == Some("io_uring_enter") || is_aio(nr);
        if ring && object.fileset == 0 && !writes {
            detail.fileset = self.files.main_of_thread(tid);
        }
        let kind = match wait_kind(&id) {
            _ if locks_files(nr) => Kind::Serialization,
            WaitKind::File | WaitKind::Uring if call(nr) == Call::Write && !producer => {
                Kind::Checkpoint
            }
            WaitKind::Uring if ring && writes && !producer => Kind::Checkpoint,
            WaitKind::File
                if call(nr) == Call::Meta && !producer && self.files.are_state(object.fileset) =>
            {
                Kind::Checkpoint
            }
            WaitKind::File | WaitKind::Uring => self.files.of(detail.fileset, tid),
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
                if self.likeness(outsider) == Some(Likeness::Same) {
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
    pub(super) fn network(&self, tid: u32, outsider: u32) -> Kind {
        if self.cast.makes_batches(tid) {
            return Kind::NetworkIo;
        }
        let likeness = self.likeness(outsider);
        if !self.cast.ranks.is_empty() || likeness == Some(Likeness::Same) {
            return Kind::Communication;
        }
        let own = |tid: u32| !self.cast.makes_batches(tid);
        let may_be = !self.is_known(outsider) || likeness == Some(Likeness::ButNumbers);
        if may_be && exchanges(self.facts.session, self.cast.trainer, own) {
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

    /// How far a thread outside the job runs the trainer's own command.
    fn likeness(&self, outsider: u32) -> Option<Likeness> {
        let session = self.facts.session;
        let Some((Some(pid), _)) = session.outsiders.get(&outsider) else {
            return None;
        };
        let own = session
            .processes
            .get(&self.cast.trainer)
            .and_then(|process| process.seen.facts.as_ref())
            .map(|facts| &facts.command);
        likeness(session.host.outsiders.get(pid)?, own?)
    }
}

/// How far two processes run the same command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Likeness {
    /// The same program: another rank.
    Same,
    /// The same but for numbers in the name, or in the code that is given in its place, as the processes that Python's multiprocessing
    /// spawns have numbers of pipes there: another rank if as much goes out to it as comes in.
    ButNumbers,
}

fn likeness(theirs: &[String], own: &[String]) -> Option<Likeness> {
    if own.is_empty() || theirs.first() != own.first() {
        return None;
    }
    let (theirs, own) = (program(theirs), program(own));
    if theirs == own {
        return Some(Likeness::Same);
    }
    let plain = |name: &String| name.replace(|c: char| c.is_ascii_digit(), "");
    (theirs.map(plain) == own.map(plain)).then_some(Likeness::ButNumbers)
}

/// The first argument that names a program or module, options left out.
fn program(command: &[String]) -> Option<&String> {
    command.iter().skip(1).find(|word| !word.starts_with('-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_run_the_same_command_but_for_numbers() {
        let command = |words: &[&str]| {
            words
                .iter()
                .map(|word| (*word).to_owned())
                .collect::<Vec<_>>()
        };
        let spawned = |pipe: u32| {
            let code = format!(
                "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=6, pipe_handle={pipe})"
            );
            command(&[
                "/usr/bin/python3",
                "-B",
                "-c",
                &code,
                "--multiprocessing-fork",
            ])
        };
        for (theirs, own, told) in [
            (
                command(&["python3", "train.py"]),
                command(&["python3", "-u", "train.py", "--rank", "1"]),
                Some(Likeness::Same),
            ),
            (spawned(9), spawned(13), Some(Likeness::ButNumbers)),
            (spawned(9), command(&["/usr/bin/python3", "train.py"]), None),
            (
                command(&["python3", "serve.py"]),
                command(&["python3", "train.py"]),
                None,
            ),
            (
                command(&["node", "train.py"]),
                command(&["python3", "train.py"]),
                None,
            ),
            (command(&["python3", "train.py"]), command(&[]), None),
        ] {
            assert_eq!(likeness(&theirs, &own), told, "{theirs:?} {own:?}");
        }
    }
}
