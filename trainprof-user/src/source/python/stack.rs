//! From a process's memory to the functions on its main thread's stack. Pure.
//!
//! The process goes on while it is read, so anything may be there: every address is one that may not be readable, every list may
//! have no end.

use super::layout::Layout;

/// Functions of one stack, the innermost ones.
pub const MAX_DEPTH: usize = 64;
/// Frames that are looked at for them: some have no function of the program.
const MAX_FRAMES: usize = 160;
/// Threads of one interpreter.
const MAX_THREADS: usize = 256;
/// Characters of a name.
const MAX_TEXT: u64 = 4096;
/// Bytes read at once. They lie in one page, so that they can be read together or not at all.
const BLOCK: u64 = 4096;
/// Blocks that are kept.
const MAX_BLOCKS: usize = 32;
/// Of an object: its type (Include/object.h).
const TYPE: u64 = 8;
/// Of a text: its length and its state (Include/cpython/unicodeobject.h).
const LENGTH: u64 = 16;
const STATE: u64 = 32;
/// Bits of a reference that are none of the address (3.14, Include/internal/pycore_stackref.h).
pub const TAG: u64 = 3;
/// In `co_flags`.
const CO_GENERATOR: u32 = 0x20;
/// The file of code that the interpreter made for itself (`_Py_MakeShimCode` in Objects/codeobject.c).
const OWN: &str = "<shim>";

/// Memory of a process.
pub trait Memory {
    /// Reads what is at an address, all of it or nothing.
    fn read(&self, at: u64, into: &mut [u8]) -> Option<()>;
}

/// A Python in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Python {
    /// Address of `_PyRuntime`, and how many bytes it has.
    pub runtime: u64,
    pub runtime_bytes: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
    pub layout: Layout,
}

/// A function of the program.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Function {
    pub file: String,
    pub name: String,
    pub line: u32,
    pub generator: bool,
}

/// What was read cannot be a stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn;

/// Memory read block by block: frames lie close together.
pub struct Blocks<'m, M> {
    memory: &'m M,
    held: Vec<(u64, Vec<u8>)>,
}

impl<'m, M: Memory> Blocks<'m, M> {
    pub fn new(memory: &'m M) -> Self {
        Self {
            memory,
            held: Vec::new(),
        }
    }

    /// So many bytes at an address that is a multiple of their number.
    fn bytes<const N: usize>(&mut self, at: u64) -> Option<[u8; N]> {
        if !at.is_multiple_of(N as u64) {
            return None;
        }
        let start = at & !(BLOCK - 1);
        let held = match self.held.iter().position(|(begin, _)| *begin == start) {
            Some(held) => held,
            None => {
                let mut bytes = vec![0; BLOCK as usize];
                self.memory.read(start, &mut bytes)?;
                if self.held.len() >= MAX_BLOCKS {
                    self.held.clear();
                }
                self.held.push((start, bytes));
                self.held.len() - 1
            }
        };
        let from = (at - start) as usize;
        self.held[held].1.get(from..from + N)?.try_into().ok()
    }

    /// The word at an offset from an address.
    fn word(&mut self, base: u64, offset: u64) -> Option<u64> {
        self.bytes(base.wrapping_add(offset))
            .map(u64::from_le_bytes)
    }

    fn half(&mut self, base: u64, offset: u64) -> Option<u32> {
        self.bytes(base.wrapping_add(offset))
            .map(u32::from_le_bytes)
    }
}

/// The main thread's state: the last in the list, since new ones are put in front. `None`: there is none now.
pub fn main_thread<M: Memory>(
    blocks: &mut Blocks<'_, M>,
    python: &Python,
) -> Result<Option<u64>, Torn> {
    Ok(threads(blocks, python)?.last().copied())
}

/// The states of all threads, the newest first.
pub fn threads<M: Memory>(blocks: &mut Blocks<'_, M>, python: &Python) -> Result<Vec<u64>, Torn> {
    let layout = &python.layout;
    let interpreter = blocks
        .word(python.runtime, layout.interpreter)
        .ok_or(Torn)?;
    let mut out = Vec::new();
    if interpreter == 0 {
        return Ok(out);
    }
    let mut thread = blocks.word(interpreter, layout.threads).ok_or(Torn)?;
    while thread != 0 {
        if out.len() >= MAX_THREADS {
            return Err(Torn);
        }
        out.push(thread);
        thread = blocks.word(thread, layout.next_thread).ok_or(Torn)?;
    }
    Ok(out)
}

/// What the kernel calls a thread, in the namespace that it lives in; 0 where its version does not tell.
pub fn native<M: Memory>(
    blocks: &mut Blocks<'_, M>,
    layout: &Layout,
    thread: u64,
) -> Result<u64, Torn> {
    match layout.native {
        Some(native) => blocks.word(thread, native).ok_or(Torn),
        None => Ok(0),
    }
}

/// The functions on a thread's stack, the innermost first. `number` gives a function's by the address of its code, and `None` for
/// what is no code of the program: frames of the interpreter's own are left out.
pub fn walk<M: Memory>(
    blocks: &mut Blocks<'_, M>,
    layout: &Layout,
    thread: u64,
    mut number: impl FnMut(u64) -> Option<u32>,
) -> Result<Vec<u32>, Torn> {
    let mut frame = blocks.word(thread, layout.frame).ok_or(Torn)?;
    if let Some(behind) = layout.frame_behind
        && frame != 0
    {
        frame = blocks.word(frame, behind).ok_or(Torn)?;
    }
    let mut seen = Vec::new();
    let mut functions = Vec::new();
    while frame != 0 && functions.len() < MAX_DEPTH {
        if seen.len() >= MAX_FRAMES || seen.contains(&frame) {
            return Err(Torn);
        }
        seen.push(frame);
        let code = blocks.word(frame, layout.code).ok_or(Torn)? & !TAG;
        functions.extend(number(code));
        frame = blocks.word(frame, layout.caller).ok_or(Torn)?;
    }
    Ok(functions)
}

/// The function that the code at an address is of, if it is code.
pub fn function<M: Memory>(memory: &M, python: &Python, code: u64) -> Option<Function> {
    let mut blocks = Blocks::new(memory);
    let layout = &python.layout;
    if blocks.word(code, TYPE)? != python.code_type {
        return None;
    }
    let flags = blocks.half(code, layout.flags)?;
    let line = i32::from_le_bytes(blocks.half(code, layout.line)?.to_le_bytes());
    let [file, name] = [layout.file, layout.name].map(|offset| {
        let text = blocks.word(code, offset)?;
        self::text(&mut blocks, layout, text)
    });
    Some(Function {
        file: file.filter(|file| file != OWN)?,
        name: name?,
        line: u32::try_from(line).ok()?,
        generator: flags & CO_GENERATOR != 0,
    })
}

/// A text (PEP 393). What is no character, as in names that are no UTF-8, is replaced.
fn text<M: Memory>(blocks: &mut Blocks<'_, M>, layout: &Layout, at: u64) -> Option<String> {
    let state = blocks.half(at, STATE)?;
    let (kind, compact, ascii) = (state >> 2 & 7, state >> 5 & 1, state >> 6 & 1);
    let length = blocks.word(at, LENGTH)?;
    if compact == 0 || !matches!(kind, 1 | 2 | 4) || length > MAX_TEXT {
        return None;
    }
    let mut bytes = vec![0; length as usize * kind as usize];
    let from = if ascii == 1 {
        layout.ascii
    } else {
        layout.wide
    };
    blocks.memory.read(at.wrapping_add(from), &mut bytes)?;
    let character = |bytes: &[u8]| {
        let number = bytes
            .iter()
            .rev()
            .fold(0, |number, byte| number << 8 | u32::from(*byte));
        char::from_u32(number).unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    Some(bytes.chunks(kind as usize).map(character).collect())
}

#[cfg(test)]
mod tests;
