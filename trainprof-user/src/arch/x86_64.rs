//! x86-64.
//!
//! A probe on a function is cheapest on the first instruction that the kernel emulates instead of single-stepping it, as long as
//! nothing has changed up to there.

use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::Spot;
use crate::env::host::KernelVersion;

/// Instructions looked at before the entry is taken.
const MOST: usize = 12;

/// PAUSE, which loops that wait on the CPU have in them (Intel's Software Developer's Manual, volume 2).
const PAUSE: [u8; 2] = [0xf3, 0x90];

/// So many bytes before and after an address show whether it is in such a loop: what it looks at is compared right behind the PAUSE.
pub const SPIN_BYTES: usize = 12;

/// Whether code waits on the CPU.
pub fn spins(code: &[u8]) -> bool {
    code.windows(PAUSE.len()).any(|bytes| bytes == PAUSE)
}

/// Linux from which on nops of several bytes are emulated.
const LONG_NOPS: KernelVersion = KernelVersion {
    major: 6,
    minor: 18,
};

/// Registers of the first arguments (System V ABI for x86-64), and the stack pointer, where the return address lies.
const ARGUMENTS: [Register; 6] = [
    Register::RDI,
    Register::RSI,
    Register::RDX,
    Register::RCX,
    Register::R8,
    Register::R9,
];

/// What a kernel emulates beside push, jump and call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Emulates {
    /// Nops of several bytes (`0f 1f`).
    long_nops: bool,
}

impl Emulates {
    /// By its version; one that is not known single-steps.
    pub fn by(kernel: Option<KernelVersion>) -> Self {
        Self {
            long_nops: kernel.is_some_and(|version| version >= LONG_NOPS),
        }
    }
}

/// The spot of a function that lies at `address`, begins with `body` (as much of it as is known) and whose first
/// `arguments` arguments are wanted.
pub fn spot(body: &[u8], address: u64, arguments: usize, emulates: Emulates) -> Spot {
    let targets = branch_targets(body, address);
    let mut decoder = Decoder::with_ip(64, body, address, DecoderOptions::NONE);
    for n in 0..MOST {
        if !decoder.can_decode() {
            break;
        }
        let instruction = decoder.decode();
        if instruction.is_invalid() {
            break;
        }
        let offset = instruction.ip() - address;
        let bytes = &body[offset as usize..offset as usize + instruction.len()];
        // What a jump leads to is run more than once for a call, or not for each.
        if n > 0 && targets.contains(&instruction.ip()) {
            break;
        }
        if emulated(&instruction, bytes, emulates) {
            return Spot {
                offset,
                steps: false,
            };
        }
        if instruction.flow_control() != FlowControl::Next
            || !harmless(&instruction, &ARGUMENTS[..arguments])
        {
            break;
        }
    }
    Spot {
        offset: 0,
        steps: true,
    }
}

/// Whether the kernel emulates it (arch/x86/kernel/uprobes.c: `push_setup_ops`, `branch_setup_ops`, and since Linux
/// 6.18 nops of any length).
fn emulated(instruction: &Instruction, bytes: &[u8], emulates: Emulates) -> bool {
    match bytes {
        [0x50..=0x57] | [0x41, 0x50..=0x57] | [0x90] | [0x66, 0x90] => true,
        [0xe8 | 0xe9, _, _, _, _] | [0xeb | 0x70..=0x7f, _] | [0x0f, 0x80..=0x8f, ..] => true,
        _ => emulates.long_nops && instruction.mnemonic() == Mnemonic::Nop,
    }
}

/// An instruction of a list of those that change nothing but their first operand and flags, and that operand is none
/// of what is wanted.
fn harmless(instruction: &Instruction, arguments: &[Register]) -> bool {
    use Mnemonic::{
        Add, And, Cmp, Endbr64, Lea, Mov, Movaps, Movd, Movdqa, Movdqu, Movq, Movsx, Movsxd,
        Movups, Movzx, Neg, Nop, Not, Or, Pxor, Sar, Sete, Setne, Shl, Shr, Sub, Test, Xor, Xorps,
    };
    match instruction.mnemonic() {
        Endbr64 | Nop | Cmp | Test => true,
        Add | And | Lea | Mov | Movaps | Movd | Movdqa | Movdqu | Movq | Movsx | Movsxd
        | Movups | Movzx | Neg | Not | Or | Pxor | Sar | Sete | Setne | Shl | Shr | Sub | Xor
        | Xorps => {
            if instruction.op0_kind() != OpKind::Register {
                // A store: to memory that is not an argument in a register.
                return !instruction.has_rep_prefix() && !instruction.has_repne_prefix();
            }
            let written = instruction.op0_register().full_register();
            written != Register::RSP && !arguments.contains(&written)
        }
        _ => false,
    }
}

/// Where direct jumps and calls in a function lead.
pub fn branch_targets(body: &[u8], address: u64) -> Vec<u64> {
    let mut out: Vec<u64> = Decoder::with_ip(64, body, address, DecoderOptions::NONE)
        .into_iter()
        .filter(|i| {
            matches!(
                i.op0_kind(),
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
            )
        })
        .map(|i| i.near_branch_target())
        .collect();
    out.sort_unstable();
    out.dedup();
    out
}

/// Where code that does nothing but jump through memory (an entry of a procedure linkage table) reads its target from.
pub fn jumps_through(code: &[u8], address: u64) -> Option<u64> {
    Decoder::with_ip(64, code, address, DecoderOptions::NONE)
        .into_iter()
        .take(2)
        .find(|i| i.flow_control() == FlowControl::IndirectBranch && i.is_ip_rel_memory_operand())
        .map(|i| i.ip_rel_memory_address())
}

// Functions of our own that the calibration probes: a push, which the kernel emulates; a test, which it does not; one whose return is
// seen; and one that gives back what that returned.

#[unsafe(naked)]
unsafe extern "C" fn emulated_first(_size: u64) {
    core::arch::naked_asm!("push rbp", "pop rbp", "ret")
}

#[unsafe(naked)]
unsafe extern "C" fn stepped_first(_size: u64) {
    core::arch::naked_asm!("test edi, edi", "ret")
}

#[unsafe(naked)]
unsafe extern "C" fn returning(_size: u64) {
    // Not the first one's bytes: two functions with the same may be made one. What it was given is what it returns: an address, as it were.
    core::arch::naked_asm!("push rbx", "pop rbx", "mov rax, rdi", "ret")
}

#[unsafe(naked)]
unsafe extern "C" fn releasing(_address: u64) {
    core::arch::naked_asm!("push r12", "pop r12", "ret")
}

/// Functions that do nothing: one whose first instruction the kernel emulates, one where it single-steps, one whose return
/// is to be seen, and one that gives back what that one returned.
pub const CALIBRATED: [unsafe extern "C" fn(u64); 4] =
    [emulated_first, stepped_first, returning, releasing];

/// Finds callers, with the tables of modules whose bytes are `D`.
pub type Unwinder<D> = UnwinderX86_64<D>;
pub type UnwindCache = CacheX86_64;

/// Registers to unwind from: instruction, stack pointer, frame pointer.
pub fn unwind_from([ip, sp, bp]: [u64; 3]) -> UnwindRegsX86_64 {
    UnwindRegsX86_64::new(ip, sp, bp)
}

/// Instruction, stack pointer and frame pointer of the caller.
#[cfg(test)]
#[inline(always)]
pub fn here() -> [u64; 3] {
    let (ip, sp, bp): (u64, u64, u64);
    // SAFETY: reads registers alone.
    unsafe {
        core::arch::asm!(
            "lea {ip}, [rip]", "mov {sp}, rsp", "mov {bp}, rbp",
            ip = out(reg) ip, sp = out(reg) sp, bp = out(reg) bp,
        );
    }
    [ip, sp, bp]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OLD: Emulates = Emulates { long_nops: false };
    const NEW: Emulates = Emulates { long_nops: true };

    fn at(body: &[u8], arguments: usize) -> (u64, bool) {
        let spot = spot(body, 0x1000, arguments, OLD);
        (spot.offset, spot.steps)
    }

    #[test]
    fn the_first_emulated_instruction_is_taken_while_nothing_has_changed() {
        // push rbp
        assert_eq!(at(&[0x55, 0xc3], 1), (0, false));
        // endbr64; push r12
        assert_eq!(
            at(&[0xf3, 0x0f, 0x1e, 0xfa, 0x41, 0x54, 0xc3], 1),
            (4, false)
        );
        // mov rax,[rip+0]; push rbx
        assert_eq!(
            at(&[0x48, 0x8b, 0x05, 0, 0, 0, 0, 0x53, 0xc3], 1),
            (7, false)
        );
        // mov rdi,rsi; push rbx: the argument is gone
        assert_eq!(at(&[0x48, 0x89, 0xf7, 0x53, 0xc3], 1), (0, true));
        // mov rsi,rax; push rbx: for one argument harmless, for two not
        assert_eq!(at(&[0x48, 0x89, 0xc6, 0x53, 0xc3], 1), (3, false));
        assert_eq!(at(&[0x48, 0x89, 0xc6, 0x53, 0xc3], 2), (0, true));
        // mov esi,eax: writes the whole of rsi
        assert_eq!(at(&[0x89, 0xc6, 0x53, 0xc3], 2), (0, true));
        // sub rsp,8; push rbx: the return address is no longer on top
        assert_eq!(at(&[0x48, 0x83, 0xec, 8, 0x53, 0xc3], 1), (0, true));
        // ret
        assert_eq!(at(&[0xc3], 1), (0, true));
        assert_eq!(at(&[], 1), (0, true));
    }

    #[test]
    fn a_nop_behind_the_mark_of_indirect_jumps_is_cheap_only_where_it_is_emulated() {
        // endbr64; nop dword [rax]; sub rsp, 0x18; as compilers leave room for patching a function of a library.
        let body = [
            0xf3, 0x0f, 0x1e, 0xfa, 0x0f, 0x1f, 0x40, 0, 0x48, 0x83, 0xec, 0x18, 0xc3,
        ];
        let of = |emulates| {
            let spot = spot(&body, 0x1000, 2, emulates);
            (spot.offset, spot.steps)
        };
        assert_eq!(of(OLD), (0, true));
        assert_eq!(of(NEW), (4, false));
    }

    #[test]
    fn branches_are_not_passed() {
        // test rdi,rdi; je +5; push rbx
        let body = [
            0x48, 0x85, 0xff, 0x74, 0x05, 0x53, 0x90, 0x90, 0x90, 0x90, 0xc3,
        ];
        // The jump itself is emulated, and nothing was passed before it.
        assert_eq!(at(&body, 1), (3, false));
        // What a jump leads back to is run more than once for a call:
        // xor eax,eax; L: push rbx; pop rbx; jmp L
        let body = [0x31, 0xc0, 0x53, 0x5b, 0xeb, 0xfc];
        assert_eq!(at(&body, 1), (0, true));
    }

    #[test]
    fn kernels_from_6_18_on_emulate_long_nops() {
        for (release, emulates) in [("6.1.0", OLD), ("6.17.9", OLD), ("6.18.0", NEW)] {
            assert_eq!(Emulates::by(KernelVersion::parse(release)), emulates);
        }
        assert_eq!(Emulates::by(None), OLD);
    }

    #[test]
    fn long_nops_depend_on_the_kernel() {
        // nop dword [rax+rax]; mov edi, eax
        let body = [0x0f, 0x1f, 0x44, 0, 0, 0x89, 0xc7, 0xc3];
        assert!(spot(&body, 0, 1, OLD).steps);
        assert_eq!(
            spot(&body, 0, 1, NEW),
            Spot {
                offset: 0,
                steps: false
            }
        );
    }

    #[test]
    fn a_stub_tells_where_it_jumps() {
        // endbr64; jmp [rip+0x10]
        let stub = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0x25, 0x10, 0, 0, 0];
        assert_eq!(jumps_through(&stub, 0x1000), Some(0x101a));
        assert_eq!(jumps_through(&[0x55, 0xc3], 0), None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_a_spot_inside(body in proptest::collection::vec(any::<u8>(), 0..64), arguments in 0_usize..=6) {
            let spot = spot(&body, 0x7000, arguments, NEW);
            prop_assert!(spot.offset as usize <= body.len());
            if spot.offset > 0 { prop_assert!(!spot.steps); }
            let _ = jumps_through(&body, 1);
        }
    }
}
