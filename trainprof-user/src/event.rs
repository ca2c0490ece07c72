//! Decoding the probes' events: total functions from bytes to values. Bad bytes become a counted error.

use bytes::Buf;
use trainprof_common::{
    event::{
        BackwardEvent, ExecEvent, ExecutionEvent, ExitEvent, FaultEvent, ForkEvent, GpuCallEvent,
        GpuMemoryEvent, Kind, SampleEvent, TouchEvent, UpdateEvent, WaitEvent,
    },
    python::PY_FRAMES,
    stack::STACK_BYTES,
    thread::Object,
};

/// A decoded [`FaultEvent`], with no more of the stack than was copied.
#[derive(Clone, Debug)]
pub struct Fault {
    pub tid: u32,
    pub at: u64,
    pub address: u64,
    pub tgid: u32,
    pub weight: u32,
    pub what: u32,
    /// Addresses of code of Python, the innermost first.
    pub codes: Vec<u64>,
    pub stack: Stack,
}

/// A decoded [`GpuMemoryEvent`].
#[derive(Clone, Debug)]
pub struct GpuMemory {
    pub tid: u32,
    pub at: u64,
    pub address: u64,
    pub bytes: u64,
    pub function: u32,
    pub tgid: u32,
    /// As of a [`Fault`].
    pub codes: Vec<u64>,
}

/// A decoded [`trainprof_common::stack::UserStack`].
#[derive(Clone, Debug)]
pub struct Stack {
    pub ip: u64,
    pub sp: u64,
    pub bp: u64,
    pub data: Vec<u8>,
}

/// A decoded event.
#[derive(Clone, Debug)]
pub enum Event {
    Wait(WaitEvent),
    Fork(ForkEvent),
    Exec(ExecEvent),
    Exit(ExitEvent),
    Touch(TouchEvent),
    Sample(SampleEvent),
    GpuCall(GpuCallEvent),
    Backward(BackwardEvent),
    Update(UpdateEvent),
    Execution(ExecutionEvent),
    Fault(Fault),
    GpuMemory(GpuMemory),
}

/// Bytes that are no event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    #[error("an event of {len} bytes is too short to have a kind")]
    NoKind { len: usize },
    #[error("events of kind {kind} are not known")]
    UnknownKind { kind: u32 },
    #[error("an event of kind {kind} has {len} bytes instead of {expected}")]
    Length {
        kind: u32,
        len: usize,
        expected: usize,
    },
}

/// Decodes one event. Every input gives a value or an error.
pub fn decode(mut bytes: &[u8]) -> Result<Event, DecodeError> {
    let len = bytes.len();
    if len < 4 {
        return Err(DecodeError::NoKind { len });
    }
    let kind = bytes.get_u32_ne();
    let expect = |expected: usize| {
        if len == expected {
            Ok(())
        } else {
            Err(DecodeError::Length {
                kind,
                len,
                expected,
            })
        }
    };
    let b = &mut bytes;
    match kind {
        k if k == Kind::Wait as u32 => {
            expect(size_of::<WaitEvent>())?;
            Ok(Event::Wait(WaitEvent {
                kind,
                tid: b.get_u32_ne(),
                from: b.get_u64_ne(),
                woken: b.get_u64_ne(),
                to: b.get_u64_ne(),
                object: object(b),
                waker: b.get_u32_ne(),
                nr: b.get_i16_ne(),
                waker_kind: b.get_u8(),
                iowait: b.get_u8(),
                ran_before: b.get_u32_ne(),
                pad: b.get_u32_ne(),
            }))
        }
        k if k == Kind::Fork as u32 => {
            expect(size_of::<ForkEvent>())?;
            Ok(Event::Fork(ForkEvent {
                kind,
                parent_tid: b.get_u32_ne(),
                at: b.get_u64_ne(),
                parent_tgid: b.get_u32_ne(),
                child_tid: b.get_u32_ne(),
                child_tgid: b.get_u32_ne(),
                pad: b.get_u32_ne(),
                comm: comm(b),
            }))
        }
        k if k == Kind::Exec as u32 => {
            expect(size_of::<ExecEvent>())?;
            Ok(Event::Exec(ExecEvent {
                kind,
                tgid: b.get_u32_ne(),
                at: b.get_u64_ne(),
                old_tid: b.get_u32_ne(),
                pad: b.get_u32_ne(),
                comm: comm(b),
            }))
        }
        k if k == Kind::Exit as u32 => {
            expect(size_of::<ExitEvent>())?;
            Ok(Event::Exit(ExitEvent {
                kind,
                tid: b.get_u32_ne(),
                at: b.get_u64_ne(),
                tgid: b.get_u32_ne(),
                flags: b.get_u32_ne(),
            }))
        }
        k if k == Kind::Touch as u32 => {
            expect(size_of::<TouchEvent>())?;
            Ok(Event::Touch(TouchEvent {
                kind,
                tid: b.get_u32_ne(),
                at: b.get_u64_ne(),
                object: object(b),
                bytes: b.get_u64_ne(),
                op: b.get_u32_ne(),
                skipped: b.get_u32_ne(),
            }))
        }
        k if k == Kind::Sample as u32 => {
            expect(size_of::<SampleEvent>())?;
            Ok(Event::Sample(SampleEvent {
                kind,
                tid: b.get_u32_ne(),
                at: b.get_u64_ne(),
                ip: b.get_u64_ne(),
                tgid: b.get_u32_ne(),
                nr: b.get_i16_ne(),
                pad: b.get_u16_ne(),
            }))
        }
        k if k == Kind::GpuCall as u32 => {
            expect(size_of::<GpuCallEvent>())?;
            Ok(Event::GpuCall(GpuCallEvent {
                kind,
                tid: b.get_u32_ne(),
                from: b.get_u64_ne(),
                ns: b.get_u64_ne(),
                bytes: b.get_u64_ne(),
                function: b.get_u32_ne(),
                what: b.get_u32_ne(),
            }))
        }
        k if k == Kind::Backward as u32 => {
            expect(size_of::<BackwardEvent>())?;
            Ok(Event::Backward(BackwardEvent {
                kind,
                tid: b.get_u32_ne(),
                at: b.get_u64_ne(),
                sp: b.get_u64_ne(),
                path: b.get_u64_ne(),
            }))
        }
        k if k == Kind::Update as u32 => {
            expect(size_of::<UpdateEvent>())?;
            Ok(Event::Update(UpdateEvent {
                kind,
                tid: b.get_u32_ne(),
                at: b.get_u64_ne(),
            }))
        }
        k if k == Kind::Execution as u32 => {
            expect(size_of::<ExecutionEvent>())?;
            Ok(Event::Execution(ExecutionEvent {
                kind,
                tid: b.get_u32_ne(),
                at: b.get_u64_ne(),
                what: b.get_u64_ne(),
            }))
        }
        k if k == Kind::Fault as u32 => {
            expect(size_of::<FaultEvent>())?;
            let (tid, at, address) = (b.get_u32_ne(), b.get_u64_ne(), b.get_u64_ne());
            let (tgid, weight, what) = (b.get_u32_ne(), b.get_u32_ne(), b.get_u32_ne());
            b.advance(4);
            Ok(Event::Fault(Fault {
                tid,
                at,
                address,
                tgid,
                weight,
                what,
                codes: codes(b),
                stack: stack(b),
            }))
        }
        k if k == Kind::GpuMemory as u32 => {
            expect(size_of::<GpuMemoryEvent>())?;
            Ok(Event::GpuMemory(GpuMemory {
                tid: b.get_u32_ne(),
                at: b.get_u64_ne(),
                address: b.get_u64_ne(),
                bytes: b.get_u64_ne(),
                function: b.get_u32_ne(),
                tgid: b.get_u32_ne(),
                codes: codes(b),
            }))
        }
        kind => Err(DecodeError::UnknownKind { kind }),
    }
}

/// Ring memory beyond what was copied holds what was there before, here and below.
fn codes(bytes: &mut &[u8]) -> Vec<u64> {
    let count = bytes.get_u32_ne() as usize;
    bytes.advance(4);
    let all: Vec<u64> = (0..PY_FRAMES).map(|_| bytes.get_u64_ne()).collect();
    all[..count.min(PY_FRAMES)].to_vec()
}

fn stack(bytes: &mut &[u8]) -> Stack {
    let (ip, sp, bp) = (bytes.get_u64_ne(), bytes.get_u64_ne(), bytes.get_u64_ne());
    let copied = bytes.get_u32_ne() as usize;
    bytes.advance(4);
    let data = bytes[..copied.min(STACK_BYTES).min(bytes.len())].to_vec();
    Stack { ip, sp, bp, data }
}

fn object(bytes: &mut &[u8]) -> Object {
    Object {
        id: bytes.get_u64_ne(),
        dev: bytes.get_u32_ne(),
        fileset: bytes.get_u32_ne(),
        class: bytes.get_u32_ne(),
        pad: bytes.get_u32_ne(),
    }
}

fn comm(bytes: &mut &[u8]) -> [u8; 16] {
    let mut out = [0; 16];
    bytes.copy_to_slice(&mut out);
    out
}

/// A task's name: up to the first NUL, with replacement characters for what is not UTF-8.
pub fn name(comm: &[u8; 16]) -> String {
    let end = comm.iter().position(|b| *b == 0).unwrap_or(comm.len());
    String::from_utf8_lossy(&comm[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use trainprof_common::Wire;
    use trainprof_common::event::EXIT_OUT_OF_MEMORY;
    use trainprof_common::python::PyFrames;
    use trainprof_common::stack::UserStack;

    use super::*;

    fn bytes_of<T: Wire>(value: &T) -> Vec<u8> {
        // SAFETY: wire types have no padding.
        unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) }
            .to_vec()
    }

    fn exit() -> ExitEvent {
        ExitEvent {
            kind: Kind::Exit as u32,
            tid: 7,
            at: 99,
            tgid: 5,
            flags: EXIT_OUT_OF_MEMORY,
        }
    }

    #[test]
    fn fields_survive() {
        let wait = WaitEvent {
            kind: Kind::Wait as u32,
            tid: 1,
            from: 2,
            woken: 3,
            to: 4,
            object: Object {
                id: 5,
                dev: 6,
                fileset: 7,
                class: 8,
                pad: 0,
            },
            waker: 9,
            nr: -3,
            waker_kind: 2,
            iowait: 1,
            ran_before: 7,
            pad: 0,
        };
        let Ok(Event::Wait(got)) = decode(&bytes_of(&wait)) else {
            panic!("a wait")
        };
        assert_eq!(bytes_of(&got), bytes_of(&wait));
        let touch = TouchEvent {
            kind: Kind::Touch as u32,
            tid: 1,
            at: 2,
            object: wait.object,
            bytes: 3,
            op: 4,
            skipped: 5,
        };
        let Ok(Event::Touch(got)) = decode(&bytes_of(&touch)) else {
            panic!("a touch")
        };
        assert_eq!(bytes_of(&got), bytes_of(&touch));
        let Ok(Event::Exit(got)) = decode(&bytes_of(&exit())) else {
            panic!("an exit")
        };
        assert_eq!(bytes_of(&got), bytes_of(&exit()));
        let sample = SampleEvent {
            kind: Kind::Sample as u32,
            tid: 1,
            at: 2,
            ip: 3,
            tgid: 4,
            nr: -2,
            pad: 0,
        };
        let Ok(Event::Sample(got)) = decode(&bytes_of(&sample)) else {
            panic!("a sample")
        };
        assert_eq!(bytes_of(&got), bytes_of(&sample));
        let pass = BackwardEvent {
            kind: Kind::Backward as u32,
            tid: 1,
            at: 2,
            sp: 3,
            path: 4,
        };
        let Ok(Event::Backward(got)) = decode(&bytes_of(&pass)) else {
            panic!("a pass")
        };
        assert_eq!(bytes_of(&got), bytes_of(&pass));
        let update = UpdateEvent {
            kind: Kind::Update as u32,
            tid: 1,
            at: 2,
        };
        let Ok(Event::Update(got)) = decode(&bytes_of(&update)) else {
            panic!("an update")
        };
        assert_eq!(bytes_of(&got), bytes_of(&update));
        let execution = ExecutionEvent {
            kind: Kind::Execution as u32,
            tid: 1,
            at: 2,
            what: 3,
        };
        let Ok(Event::Execution(got)) = decode(&bytes_of(&execution)) else {
            panic!("an execution")
        };
        assert_eq!(bytes_of(&got), bytes_of(&execution));
        let call = GpuCallEvent {
            kind: Kind::GpuCall as u32,
            tid: 1,
            from: 2,
            ns: 3,
            bytes: 4,
            function: 5,
            what: 6,
        };
        let Ok(Event::GpuCall(got)) = decode(&bytes_of(&call)) else {
            panic!("a call")
        };
        assert_eq!(bytes_of(&got), bytes_of(&call));
    }

    #[test]
    fn stacks_are_as_long_as_they_say_and_no_longer_than_their_room() {
        let mut fault = FaultEvent {
            kind: Kind::Fault as u32,
            tid: 1,
            at: 2,
            address: 3,
            tgid: 4,
            weight: 5,
            what: 6,
            pad: 0,
            python: PyFrames {
                count: 0,
                pad: 0,
                codes: std::array::from_fn(|n| n as u64),
            },
            stack: UserStack {
                ip: 7,
                sp: 8,
                bp: 9,
                bytes: 1024,
                pad: 0,
                data: [10; STACK_BYTES],
            },
        };
        for (says, is) in [(1024, 1024), (0, 0), (u32::MAX, STACK_BYTES)] {
            fault.stack.bytes = says;
            let Ok(Event::Fault(got)) = decode(&bytes_of(&fault)) else {
                panic!("a fault")
            };
            assert_eq!(
                (got.tid, got.at, got.address, got.tgid, got.weight, got.what),
                (1, 2, 3, 4, 5, 6)
            );
            let stack = got.stack;
            assert_eq!((stack.ip, stack.sp, stack.bp), (7, 8, 9));
            assert_eq!(stack.data, vec![10; is]);
        }
        for (says, is) in [(2, 2), (0, 0), (u32::MAX, PY_FRAMES)] {
            fault.python.count = says;
            let memory = GpuMemoryEvent {
                kind: Kind::GpuMemory as u32,
                tid: 1,
                at: 2,
                address: 3,
                bytes: 4,
                function: 5,
                tgid: 6,
                python: fault.python,
            };
            let Ok(Event::GpuMemory(got)) = decode(&bytes_of(&memory)) else {
                panic!("memory of a GPU")
            };
            let numbers = (
                got.tid,
                got.at,
                got.address,
                got.bytes,
                got.function,
                got.tgid,
            );
            assert_eq!(numbers, (1, 2, 3, 4, 5, 6));
            assert_eq!(got.codes, Vec::from_iter(0..is as u64));
            let Ok(Event::Fault(got)) = decode(&bytes_of(&fault)) else {
                panic!("a fault")
            };
            let codes: Vec<u64> = (0..is as u64).collect();
            assert_eq!((got.codes, got.stack.ip), (codes, 7));
        }
    }

    #[test]
    fn bad_bytes_are_errors() {
        let good = bytes_of(&exit());
        for (bytes, error) in [
            (&[][..], DecodeError::NoKind { len: 0 }),
            (&good[..3], DecodeError::NoKind { len: 3 }),
            (
                &good[..20],
                DecodeError::Length {
                    kind: 4,
                    len: 20,
                    expected: 24,
                },
            ),
            (
                &99_u32.to_ne_bytes()[..],
                DecodeError::UnknownKind { kind: 99 },
            ),
        ] {
            assert_eq!(decode(bytes).expect_err("bad"), error);
        }
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..128), kind in 0_u32..9) {
            let _ = decode(&bytes);
            let mut typed = kind.to_ne_bytes().to_vec();
            typed.extend(bytes);
            let _ = decode(&typed);
        }
    }
}
