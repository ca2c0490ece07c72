use super::*;
use crate::record::fact::PlaceClass;

/// The stack of the calling thread, as a probe would copy it.
#[inline(never)]
fn own_stack() -> Raw {
    let [ip, sp, bp] = crate::arch::here();
    let data = (0..512_usize)
        // SAFETY: a test's thread has megabytes of stack, of which this is the next page.
        .flat_map(|n| unsafe { *((sp as usize + 8 * n) as *const u64) }.to_ne_bytes())
        .collect();
    Raw::Memory { ip, sp, bp, data }
}

#[inline(never)]
fn middle_of_the_stack() -> Raw {
    std::hint::black_box(own_stack())
}

#[inline(never)]
fn outer_of_the_stack() -> Raw {
    std::hint::black_box(middle_of_the_stack())
}

fn settled(stacks: &mut Stacks, places: &mut Places, out: &mut Vec<Record>) {
    for _ in 0..100 {
        stacks.settle(Duration::from_millis(100), places, out);
        if stacks.waiting.is_empty() {
            return;
        }
    }
    panic!("no answers");
}

fn then() -> Then {
    Box::new(|stack| Record::Missing {
        what: stack.to_string(),
        reason: String::new(),
    })
}

/// Functions of each stack that was recorded with a fact, the innermost first.
fn recorded(out: &[Record]) -> Vec<Vec<FrameFact>> {
    let mut frames = BTreeMap::new();
    let mut stacks = BTreeMap::new();
    let mut facts = Vec::new();
    for record in out {
        match record {
            Record::Frame(frame) => {
                assert!(frames.insert(frame.number, frame.clone()).is_none());
            }
            Record::Stack(stack) => {
                let of: Vec<FrameFact> = stack.frames.iter().map(|n| frames[n].clone()).collect();
                assert!(stacks.insert(stack.number, of).is_none());
            }
            Record::Missing { what, .. } => {
                facts.push(stacks[&what.parse::<u32>().expect("a number")].clone());
            }
            other => panic!("{other:?}"),
        }
    }
    facts
}

#[test]
fn callers_are_found_without_frame_pointers_and_named() {
    let (mut stacks, mut places, mut out) = (Stacks::default(), Places::default(), Vec::new());
    let own = std::process::id();
    for _ in 0..2 {
        stacks.add(&mut places, own, outer_of_the_stack(), then(), &mut out);
        settled(&mut stacks, &mut places, &mut out);
    }
    let found = recorded(&out);
    assert_eq!(found.len(), 2);
    for stack in &found {
        let names: Vec<String> = stack
            .iter()
            .map(|frame| frame.function.clone().unwrap_or_default())
            .collect();
        let at = |name: &str| names.iter().position(|found| found.contains(name));
        let (own, middle) = (at("own_stack"), at("middle_of_the_stack"));
        assert_eq!(own, Some(0), "{names:?}");
        assert_eq!(middle, Some(1), "{names:?}");
        assert_eq!(at("outer_of_the_stack"), Some(2), "{names:?}");
        assert!(names.len() > 5, "{names:?}");
    }
}

#[test]
fn addresses_are_named_too() {
    let (mut stacks, mut places, mut out) = (Stacks::default(), Places::default(), Vec::new());
    let raw = Raw::Addresses(vec![
        libc::malloc as *const () as u64,
        settled as *const () as u64 + 4,
        8,
    ]);
    stacks.add(&mut places, std::process::id(), raw, then(), &mut out);
    settled(&mut stacks, &mut places, &mut out);
    let found = recorded(&out);
    let [malloc, settled, nowhere] = &found[0][..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        (malloc.function.as_deref(), malloc.class),
        (Some("malloc"), PlaceClass::Malloc)
    );
    assert!(
        malloc
            .module
            .as_deref()
            .is_some_and(|m| m.starts_with("libc"))
    );
    let function = settled.function.as_deref().unwrap_or_default();
    assert!(function.contains("settled"), "{function}");
    assert_eq!((&nowhere.module, nowhere.offset), (&None, 7));
}

#[test]
fn a_process_that_is_gone_has_stacks_without_names() {
    let (mut stacks, mut places, mut out) = (Stacks::default(), Places::default(), Vec::new());
    stacks.add(
        &mut places,
        u32::MAX - 1,
        middle_of_the_stack(),
        then(),
        &mut out,
    );
    settled(&mut stacks, &mut places, &mut out);
    let found = recorded(&out);
    assert_eq!(found[0][0].function, None);
}
