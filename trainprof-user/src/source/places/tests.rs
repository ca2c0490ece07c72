use trainprof_common::{event::Kind, thread::NR_FAULT};

use super::*;

fn sample(ip: u64, nr: i16) -> SampleEvent {
    SampleEvent {
        kind: Kind::Sample as u32,
        tid: 1,
        at: 5,
        ip,
        tgid: std::process::id(),
        nr,
        pad: 0,
    }
}

/// What was recorded: each sample's place, described before it.
fn recorded(out: &[Record]) -> Vec<PlaceFact> {
    let mut places = BTreeMap::new();
    let mut samples = Vec::new();
    for record in out {
        match record {
            Record::Place(place) => {
                assert!(places.insert(place.number, place.clone()).is_none());
            }
            Record::Sample(sample) => samples.push(places[&sample.place].clone()),
            other => panic!("{other:?}"),
        }
    }
    samples
}

fn settled(places: &mut Places, out: &mut Vec<Record>) {
    for _ in 0..100 {
        places.settle(Duration::from_millis(100), out);
        if places.waiting.is_empty() {
            return;
        }
    }
    panic!("no answers");
}

#[test]
fn functions_of_this_process_are_found_and_remembered() {
    let mut places = Places::default();
    let mut out = Vec::new();
    let own = settled as *const () as u64;
    for ip in [own, own + 1, libc::qsort as *const () as u64] {
        places.add(sample(ip, NR_PREEMPTED), &mut out);
    }
    assert!(out.is_empty(), "they wait for their functions");
    settled(&mut places, &mut out);
    let found = recorded(&out);
    let function = |n: usize| found[n].function.clone().unwrap_or_default();
    assert!(function(0).contains("settled"), "{found:?}");
    assert_eq!(found[0], found[1]);
    assert_eq!(function(2), "qsort");
    assert_eq!(found[2].class, PlaceClass::Other);
    out.clear();
    places.add(sample(own + 2, NR_PREEMPTED), &mut out);
    assert!(
        matches!(out[..], [Record::Sample(_)]),
        "known by now: {out:?}"
    );
}

#[test]
fn kernel_mode_and_unmapped_addresses_are_one_place_each() {
    let mut places = Places::default();
    let mut out = Vec::new();
    for (ip, nr) in [(0, 0), (0, NR_FAULT), (8, NR_PREEMPTED), (16, NR_PREEMPTED)] {
        places.add(sample(ip, nr), &mut out);
    }
    let found = recorded(&out);
    assert_eq!(found[0].class, PlaceClass::Kernel);
    assert_eq!(found[0], found[1]);
    assert_eq!(
        (found[2].class, found[2].module.clone()),
        (PlaceClass::Other, None)
    );
    assert_eq!(found[2], found[3]);
}

#[test]
fn a_forked_child_has_its_parents_mappings_until_it_executes() {
    let mut places = Places::default();
    let mut out = Vec::new();
    let own = settled as *const () as u64;
    places.add(sample(own, NR_PREEMPTED), &mut out);
    settled(&mut places, &mut out);
    // No process has this id: its mappings can only be the parent's.
    let child = u32::MAX - 1;
    let in_child = SampleEvent {
        tgid: child,
        ..sample(own, NR_PREEMPTED)
    };
    places.forked(std::process::id(), child);
    out.clear();
    places.add(in_child, &mut out);
    assert!(matches!(out[..], [Record::Sample(_)]), "{out:?}");
    places.executed(child);
    out.clear();
    places.add(in_child, &mut out);
    assert_eq!(recorded(&out)[0].module, None);
}

#[test]
fn a_file_that_cannot_be_read_gives_its_modules_name() {
    let mut places = Places::default();
    let mut out = Vec::new();
    let line = maps::decode("1000-2000 r-xp 00000000 fe:00 7 /nowhere/libcuda.so.1").next();
    let mapping = places.mapping(&line.expect("a line")).expect("room");
    places.processes.insert(
        std::process::id(),
        Process {
            mappings: Arc::new([mapping]),
            ..Process::default()
        },
    );
    places.add(sample(0x1800, NR_PREEMPTED), &mut out);
    settled(&mut places, &mut out);
    places.add(sample(0x1900, NR_PREEMPTED), &mut out);
    let found = recorded(&out);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].module.as_deref(), Some("libcuda.so.1"));
    assert_eq!(found[0].class, PlaceClass::GpuDriver);
    assert_eq!(found[0], found[1]);
}

#[test]
fn places_are_bounded() {
    let mut places = Places::default();
    let mut out = Vec::new();
    for n in 0..3 * MAX_PLACES {
        let key = (Some("m".into()), Some(format!("f{n}")), PlaceClass::Other);
        places.place(key, &mut out);
    }
    assert_eq!(places.places.len(), MAX_PLACES + 1);
    assert_eq!(out.len(), MAX_PLACES + 1);
}
