use std::collections::{BTreeMap, HashMap};

use proptest::prelude::*;

use super::*;
use crate::source::python::layout::Version;

const RUNTIME: u64 = 0x10_0000;
const INTERPRETER: u64 = 0x20_0000;
const THREAD: u64 = 0x30_0000;
const FRAMES: u64 = 0x40_0000;
const CODES: u64 = 0x50_0000;
const TEXTS: u64 = 0x60_0000;
const CODE_TYPE: u64 = 0x70_0000;

/// Memory of blocks that are there only where something was written.
#[derive(Default)]
struct Fake {
    blocks: BTreeMap<u64, Vec<u8>>,
}

impl Fake {
    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            let block = self.blocks.entry(at / BLOCK);
            block.or_insert_with(|| vec![0; BLOCK as usize])[(at % BLOCK) as usize] = *byte;
        }
    }

    fn word(&mut self, at: u64, word: u64) {
        self.write(at, &word.to_le_bytes());
    }

    fn text(&mut self, layout: &Layout, at: u64, text: &str) {
        let kind = match text.chars().max().unwrap_or('a') {
            '\u{0}'..='\u{ff}' => 1,
            '\u{100}'..='\u{ffff}' => 2,
            _ => 4,
        };
        let ascii = u32::from(text.is_ascii());
        self.word(at + LENGTH, text.chars().count() as u64);
        let state = kind << 2 | 1 << 5 | ascii << 6;
        self.write(at + STATE, &state.to_le_bytes());
        let data = at
            + if text.is_ascii() {
                layout.ascii
            } else {
                layout.wide
            };
        let bytes: Vec<u8> = text
            .chars()
            .flat_map(|c| u32::from(c).to_le_bytes()[..kind as usize].to_vec())
            .collect();
        self.write(data, &bytes);
    }

    fn code(&mut self, python: &Python, at: u64, file: &str, name: &str, line: u32, flags: u32) {
        let layout = &python.layout;
        let texts = TEXTS + (at - CODES) * 16;
        self.text(layout, texts, file);
        self.text(layout, texts + 0x800, name);
        self.word(at + TYPE, python.code_type);
        self.word(at + layout.file, texts);
        self.word(at + layout.name, texts + 0x800);
        self.write(at + layout.line, &line.to_le_bytes());
        self.write(at + layout.flags, &flags.to_le_bytes());
    }

    /// The main thread, made first, and one that was made later.
    fn threads(&mut self, layout: &Layout) {
        self.word(RUNTIME + layout.interpreter, INTERPRETER);
        self.word(INTERPRETER + layout.threads, THREAD + 0x1000);
        self.word(THREAD + 0x1000 + layout.next_thread, THREAD);
        self.word(THREAD + layout.next_thread, 0);
    }

    /// Frames of the main thread, the innermost first.
    fn frames(&mut self, layout: &Layout, codes: &[u64]) {
        let mut first = FRAMES;
        if let Some(behind) = layout.frame_behind {
            self.word(THREAD + 0x800 + behind, FRAMES);
            first = THREAD + 0x800;
        }
        self.word(THREAD + layout.frame, first);
        for (at, code) in (FRAMES..).step_by(64).zip(codes) {
            self.word(at + layout.code, *code);
            self.word(at + layout.caller, at + 64);
        }
        self.word(FRAMES + 64 * (codes.len() as u64 - 1) + layout.caller, 0);
    }
}

impl Memory for Fake {
    fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        for (at, byte) in (at..).zip(into) {
            *byte = self.blocks.get(&(at / BLOCK))?[(at % BLOCK) as usize];
        }
        Some(())
    }
}

fn python(minor: u32) -> Python {
    Python {
        runtime: RUNTIME,
        runtime_bytes: 0x1000,
        code_type: CODE_TYPE,
        layout: Layout::known(Version { major: 3, minor }).expect("a known version"),
    }
}

/// Names of the functions on the main thread's stack.
fn stack(fake: &Fake, python: &Python) -> Result<Vec<String>, Torn> {
    let mut blocks = Blocks::new(fake);
    let Some(thread) = main_thread(&mut blocks, python)? else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    let numbers = walk(&mut blocks, &python.layout, thread, |code| {
        names.push(function(fake, python, code)?.name);
        Some(names.len() as u32 - 1)
    })?;
    Ok(numbers.iter().map(|n| names[*n as usize].clone()).collect())
}

#[test]
fn stacks_of_every_layout_are_read() {
    for minor in 8..=12 {
        let python = python(minor);
        let mut fake = Fake::default();
        fake.threads(&python.layout);
        fake.code(&python, CODES, "/job/train.py", "main", 3, 0x42);
        fake.code(&python, CODES + 0x1000, "/job/data.py", "rows", 40, 0x22);
        fake.frames(&python.layout, &[CODES + 0x1000, CODES]);
        let found = stack(&fake, &python);
        assert_eq!(
            found.as_deref(),
            Ok(&["rows", "main"].map(String::from)[..]),
            "3.{minor}"
        );
        assert_eq!(
            function(&fake, &python, CODES + 0x1000),
            Some(Function {
                file: "/job/data.py".into(),
                name: "rows".into(),
                line: 40,
                generator: true,
            })
        );
    }
}

#[test]
fn names_of_any_alphabet_are_read() {
    let python = python(11);
    for name in ["plain", "größe", "обучение", "学習🚀", ""] {
        let mut fake = Fake::default();
        fake.code(&python, CODES, "/home/José/eğitim.py", name, 1, 0);
        let found = function(&fake, &python, CODES).expect("a function");
        assert_eq!(
            (found.name.as_str(), found.file.as_str()),
            (name, "/home/José/eğitim.py")
        );
    }
}

#[test]
fn frames_without_a_function_of_the_program_are_left_out() {
    let python = python(12);
    let mut fake = Fake::default();
    fake.threads(&python.layout);
    fake.code(&python, CODES, "a.py", "f", 1, 0);
    // None, the interpreter's own, nothing at all, and a reference with a tag.
    fake.word(CODES + 0x2000 + TYPE, 0x1234);
    fake.code(&python, CODES + 0x3000, OWN, "entry", 1, 0);
    let codes = [CODES + 0x2000, CODES + 0x3000, 0, 0xdead_0000, CODES | 1];
    fake.frames(&python.layout, &codes);
    assert_eq!(stack(&fake, &python), Ok(vec!["f".to_owned()]));
}

#[test]
fn of_a_deep_stack_the_innermost_functions_are_kept() {
    let python = python(11);
    let mut fake = Fake::default();
    fake.threads(&python.layout);
    fake.code(&python, CODES, "a.py", "deep", 1, 0);
    fake.code(&python, CODES + 0x1000, "a.py", "inner", 9, 0);
    let mut codes = vec![CODES; 1000];
    codes[0] = CODES + 0x1000;
    fake.frames(&python.layout, &codes);
    let found = stack(&fake, &python).expect("a stack");
    assert_eq!(found.len(), MAX_DEPTH);
    assert_eq!([&found[0], &found[1]], ["inner", "deep"]);
}

#[test]
fn torn_chains_are_no_stacks() {
    let python = python(11);
    let layout = &python.layout;
    let mut whole = Fake::default();
    whole.threads(layout);
    whole.code(&python, CODES, "a.py", "f", 1, 0);
    whole.frames(layout, &[CODES; 10]);
    assert_eq!(stack(&whole, &python).map(|s| s.len()), Ok(10));
    let fifth = FRAMES + 5 * 64;
    // To nowhere, to an address that is none, and back to the beginning.
    for caller in [0xdead_0000, fifth + 3, u64::MAX, FRAMES, fifth] {
        whole.word(fifth + layout.caller, caller);
        assert_eq!(stack(&whole, &python), Err(Torn), "{caller:x}");
    }
    // No frame of a function in a chain that goes on and on.
    whole.frames(layout, &[0; 1000]);
    assert_eq!(stack(&whole, &python), Err(Torn));
    // Threads in a circle.
    whole.word(THREAD + layout.next_thread, THREAD);
    assert_eq!(stack(&whole, &python), Err(Torn));
    // Before the interpreter has begun, and after it ended.
    whole.word(INTERPRETER + layout.threads, 0);
    assert_eq!(stack(&whole, &python), Ok(vec![]));
    whole.word(RUNTIME + layout.interpreter, 0);
    assert_eq!(stack(&whole, &python), Ok(vec![]));
    assert_eq!(stack(&Fake::default(), &python), Err(Torn));
}

#[test]
fn texts_that_are_none_are_refused() {
    let python = python(11);
    let refused = |change: fn(&mut Fake)| {
        let mut fake = Fake::default();
        fake.code(&python, CODES, "a.py", "f", 1, 0);
        assert!(function(&fake, &python, CODES).is_some());
        change(&mut fake);
        function(&fake, &python, CODES).is_none()
    };
    assert!(refused(|fake| fake.word(TEXTS + LENGTH, MAX_TEXT + 1)));
    assert!(refused(|fake| fake.word(TEXTS + STATE, 1 << 2)));
    assert!(refused(|fake| fake.word(TEXTS + STATE, 3 << 2 | 1 << 5)));
    assert!(refused(|fake| fake.word(CODES + TYPE, 1)));
    assert!(refused(|fake| fake.write(CODES + 72, &[0xff; 4])));
}

/// Words that mostly point to each other.
struct Random {
    words: Vec<u64>,
    reads: std::cell::Cell<u32>,
}

impl Memory for Random {
    fn read(&self, at: u64, into: &mut [u8]) -> Option<()> {
        self.reads.set(self.reads.get() + 1);
        assert!(self.reads.get() < 10_000, "it does not end");
        for (at, byte) in (at..).zip(into) {
            let word = self.words[(at / 8) as usize % self.words.len()];
            *byte = word.to_le_bytes()[(at % 8) as usize];
        }
        (at < 1 << 40).then_some(())
    }
}

proptest! {
    #[test]
    fn any_memory_gives_a_stack_or_none(
        words in proptest::collection::vec(
            prop_oneof![Just(0), Just(CODE_TYPE), (0_u64..4096).prop_map(|n| n * 8), any::<u64>()],
            1..512,
        ),
        minor in 8_u32..=12,
    ) {
        let random = Random { words, reads: 0.into() };
        let python = python(minor);
        let mut blocks = Blocks::new(&random);
        let mut codes = HashMap::new();
        if let Ok(Some(thread)) = main_thread(&mut blocks, &python) {
            let found = walk(&mut blocks, &python.layout, thread, |code| {
                *codes.entry(code).or_insert_with(|| {
                    function(&random, &python, code).map(|function| function.line)
                })
            });
            prop_assert!(found.is_ok_and(|functions| functions.len() <= MAX_DEPTH) || codes.len() <= MAX_FRAMES);
        }
    }
}
