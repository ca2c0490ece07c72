//! Calls into the GPU's runtime, and those in which a framework works on a step: what a probe is told of the function that it sits on.

/// Functions that can be told apart in one watch.
pub const MAX_FUNCTIONS: usize = 256;

/// An argument that there is not.
pub const NO_ARG: u8 = 0xff;

/// What a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum CallKind {
    /// Waits for work on the GPU.
    Synchronise = 0,
    /// Copies between host and device and returns when done.
    Copy = 1,
    /// Begins a copy.
    CopyAsync = 2,
    Allocate = 3,
    Free = 4,
    /// Begins a backward pass. Told by its beginning alone ([`crate::event::BackwardEvent`]): a probe at the return of what may throw
    /// an exception would stop the program.
    Backward = 5,
    /// Begins a stretch with a name: PyTorch's optimisers give one to each update of the model, and its loaders one to each batch.
    /// Updates are told, by their beginning alone ([`crate::event::UpdateEvent`]).
    Scope = 6,
    /// Calls an operator from Python, one that begins a [`CallKind::Scope`] among others.
    Operator = 7,
    /// Begins to compute what is compiled as a whole, or a round of boosting. Told by its beginning alone
    /// ([`crate::event::ExecutionEvent`]), with the argument that [`Function::size`] names: what is computed.
    Execute = 8,
}

/// Which argument of a function that begins a [`CallKind::Scope`] points to its name, a `std::string`, which begins with the address of its
/// text; and which one of a [`CallKind::Operator`] points to what points to the tuple of the operator's own arguments. Results are put where the
/// first argument says.
pub const SCOPE_NAME: usize = 1;
pub const OPERATOR_ARGUMENTS: usize = 2;
/// Which argument of a function that computes what is compiled ([`CallKind::Execute`]) says what that is, if one does. Results are put where the
/// first argument says.
pub const EXECUTED: usize = 1;
/// Where a Python tuple's first object is, and where the text of a string of plain characters is, in CPython up to 3.11 and from 3.12 on
/// (`PyTupleObject`, `PyASCIIObject`).
pub const PY_TUPLE_FIRST: u64 = 24;
pub const PY_TEXT: [u64; 2] = [48, 40];

/// How names of updates begin (`torch.optim.Optimizer.profile_hook_step`).
pub const UPDATES: [u8; 15] = *b"Optimizer.step#";

impl CallKind {
    /// The kind of a number; `None` for one that is none.
    pub const fn from_number(number: u32) -> Option<Self> {
        match number {
            0 => Some(Self::Synchronise),
            1 => Some(Self::Copy),
            2 => Some(Self::CopyAsync),
            3 => Some(Self::Allocate),
            4 => Some(Self::Free),
            5 => Some(Self::Backward),
            6 => Some(Self::Scope),
            7 => Some(Self::Operator),
            8 => Some(Self::Execute),
            _ => None,
        }
    }
}

/// What a function is, packed into the number that the kernel hands to the probe at each hit
/// (`bpf_get_attach_cookie`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function {
    /// Our own number of it, below [`MAX_FUNCTIONS`].
    pub number: u16,
    /// [`CallKind`] number.
    pub kind: u8,
    /// Which argument, from 0, is its size in bytes, or says what is computed ([`EXECUTED`]), or [`NO_ARG`].
    pub size: u8,
    /// Which argument that has to be multiplied with, or [`NO_ARG`].
    pub times: u8,
    /// Its memory is a GPU's: the first argument says where the address of what is allocated is put, or is that address.
    pub of_gpu: bool,
}

impl Function {
    pub const fn pack(self) -> u64 {
        self.number as u64
            | (self.kind as u64) << 16
            | (self.size as u64) << 24
            | (self.times as u64) << 32
            | (self.of_gpu as u64) << 40
    }

    pub const fn unpack(cookie: u64) -> Self {
        Self {
            number: cookie as u16,
            kind: (cookie >> 16) as u8,
            size: (cookie >> 24) as u8,
            times: (cookie >> 32) as u8,
            of_gpu: (cookie >> 40) & 1 != 0,
        }
    }
}

/// A call under way, by thread.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Call {
    /// Kernel time of its beginning.
    pub from: u64,
    /// Stack pointer at its beginning, where the return address lies.
    pub sp: u64,
    pub bytes: u64,
    /// First argument: where the address of what is allocated is put, or the one of what is given back.
    pub first: u64,
    pub function: u16,
    pub kind: u8,
    /// 1: [`Function::of_gpu`].
    pub of_gpu: u8,
    pub pad: [u8; 4],
}
crate::wire!(Call, 40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packed_function_comes_back_whole() {
        let function = Function {
            number: 0x1234,
            kind: 5,
            size: 4,
            times: NO_ARG,
            of_gpu: true,
        };
        assert_eq!(Function::unpack(function.pack()), function);
    }
}
