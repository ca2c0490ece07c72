//! What stacks of Python code tell of a trainer without workers, and waits for the interpreter's lock.

use trainprof_common::op::{Class, Op};

use super::{
    stories::{TRAINER, close, share, sums_up, trainer},
    tale::{By, FUTEX, On, READ, SLEEP, Tale},
};
use crate::{
    analysis::{Kind, Trainer, analyse, steps::Clock},
    record::fact::PlaceClass,
};

pub(super) const SCRIPT: &str = "/home/me/train.py";
const LOADER: &str = "/usr/lib/python3/dist-packages/torch/utils/data/dataloader.py";
pub(super) const MODULE: &str = "/usr/lib/python3/dist-packages/torch/nn/modules/module.py";

/// A trainer alone, with functions 1 (the script), 2 (the loader), 3 (a module's call) and 4 (`name` in the script).
pub(super) fn alone(name: &str, generator: bool) -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .function(1, SCRIPT, "<module>")
        .function(2, LOADER, "_BaseDataLoaderIter.__next__")
        .function(3, MODULE, "Module._call_impl");
    if generator {
        tale.generator(4, SCRIPT, name);
    } else {
        tale.function(4, SCRIPT, name);
    }
    tale
}

/// Times of samples, 20 ms apart, of a step of 100 ms: those from `from` on, `count` of them.
pub(super) fn times(from: u32, count: u32) -> impl Iterator<Item = f64> {
    (0..80).flat_map(move |step| {
        (from..from + count).map(move |n| f64::from(step * 100 + n * 20 + 10))
    })
}

#[test]
fn a_loader_without_workers_is_input() {
    let mut tale = alone("Data.__getitem__", false);
    tale.stack(1, &[4, 2, 1], TRAINER, times(0, 3))
        .stack(2, &[3, 1], TRAINER, times(3, 2));
    let trainer = trainer(&tale, 8000.0);
    sums_up(&trainer);
    close(share(&trainer, Kind::InputCpu), 0.6, "input");
    close(share(&trainer, Kind::Compute), 0.4, "compute");
}

/// A trainer that makes its batches for 60 of each 100 ms, of which 40 are so many reads of a gigabyte in the page cache.
fn reads(count: u64) -> Tale {
    let mut tale = alone("Data.__getitem__", false);
    tale.stack(1, &[4, 2, 1], TRAINER, times(0, 3))
        .stack(2, &[3, 1], TRAINER, times(3, 2))
        .place(1, "vmlinux", PlaceClass::Kernel)
        .place(2, "libmodel.so", PlaceClass::Other)
        .fileset(5, "/data", "ext4")
        .ops(TRAINER, 10.0, Op::Read, Class::File, 5, count, 1 << 30, 5.0);
    for step in 0..80 {
        for n in 0..10 {
            let when = f64::from(step * 100 + n * 10 + 5);
            if n < 4 {
                tale.sample_in(TRAINER, when, 1, READ);
            } else {
                tale.sample(TRAINER, when, 2);
            }
        }
    }
    tale
}

#[test]
fn calls_on_files_are_a_part_of_the_batches_that_they_are_for() {
    let trainer = trainer(&reads(8000), 8000.0);
    sums_up(&trainer);
    close(share(&trainer, Kind::InputCpu), 0.6, "input");
    close(share(&trainer, Kind::Compute), 0.4, "compute");
}

#[test]
fn reads_of_few_bytes_each_are_told() {
    let input = |count| {
        let analysis = analyse(&reads(count).session(8000.0));
        let mut findings = analysis.findings.into_iter();
        findings
            .find(|finding| finding.kind == "input-cpu")
            .expect("input-cpu")
    };
    let tiny = input(1 << 24);
    let told = "; 2097152 reads a second of 64 B each are 67 % of it";
    assert!(tiny.summary.ends_with(told), "{}", tiny.summary);
    assert!(
        tiny.advice.starts_with("read more at a time"),
        "{}",
        tiny.advice
    );
    assert_eq!(tiny.evidence["mean_read_bytes"], 64.0);
    let usual = input(8000);
    assert!(
        !usual.summary.contains("reads a second"),
        "{}",
        usual.summary
    );
    assert!(!usual.evidence.contains_key("reads_per_s"));
}

#[test]
fn few_stacks_do_not_speak_against_files() {
    // Three files from 0 to 60 of each 100 ms; of 60 stacks 45 happen to be in there.
    let mut tale = alone("Data.__getitem__", false);
    let steps = || (0..30).map(|step| (step % 2 == 0, f64::from(step * 100)));
    let first = steps().map(|(_, begin)| begin + 20.0);
    let second = steps()
        .filter(|(even, _)| *even)
        .map(|(_, begin)| begin + 50.0);
    let computing = steps()
        .filter(|(even, _)| !even)
        .map(|(_, begin)| begin + 70.0);
    tale.stack(1, &[4, 2, 1], TRAINER, first.chain(second))
        .stack(2, &[3, 1], TRAINER, computing);
    for (_, begin) in steps() {
        for n in 0..3 {
            let when = begin + 20.0 * f64::from(n);
            tale.touch(TRAINER, when, Op::Open, Class::File, 9, 0);
        }
    }
    close(share(&trainer(&tale, 3000.0), Kind::InputCpu), 0.6, "input");
}

#[test]
fn a_loop_is_no_source_where_some_stacks_lack_it() {
    // A stack that changed while it was read ends early: one sample in twelve.
    let torn = |at: &f64| *at % 500.0 < 200.0;
    let mut tale = alone("compute", false);
    tale.stack(1, &[2, 1], TRAINER, times(0, 2))
        .stack(2, &[4, 1], TRAINER, times(2, 2))
        .stack(3, &[4, 1], TRAINER, times(4, 1).filter(|at| !torn(at)))
        .stack(4, &[4], TRAINER, times(4, 1).filter(torn));
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::InputCpu), 0.4, "input");
    close(share(&trainer, Kind::Compute), 0.6, "compute");
}

#[test]
fn no_more_workers_than_cpus_are_advised_where_there_are_none() {
    // A fifth of the time is the model's: four workers would keep up with it.
    // What more of them save is what the CPUs have room for.
    for (cpus, advised, saved) in [
        ("0-3", "num_workers=4 ", "75 %"),
        ("0-1", "num_workers=2 ", "50 %"),
    ] {
        let mut tale = alone("Data.__getitem__", false);
        tale.stack(1, &[4, 2, 1], TRAINER, times(0, 4))
            .stack(2, &[3, 1], TRAINER, times(4, 1))
            .allowed(TRAINER, cpus);
        let analysis = analyse(&tale.session(8000.0));
        let mut findings = analysis.findings.iter();
        let found = findings.find(|finding| finding.kind == "too-few-workers");
        let advice = &found.expect("too few workers").advice;
        assert!(advice.contains(advised), "{cpus}: {advice}");
        let saves = format!("saves up to {saved} of the time");
        assert!(advice.contains(&saves), "{cpus}: {advice}");
    }
}

#[test]
fn workers_would_read_and_compute_where_the_trainer_does_both() {
    // Of 100 ms it computes a batch in 40, waits for a file in 40, and the rest is the model's.
    let mut tale = alone("Data.__getitem__", false);
    tale.stack(1, &[4, 2, 1], TRAINER, times(0, 2))
        .stack(2, &[3, 1], TRAINER, times(4, 1))
        .fileset(5, "/data", "ext4")
        .allowed(TRAINER, "0-1");
    for step in 0..80 {
        let from = f64::from(step) * 100.0 + 40.0;
        tale.wait(TRAINER, from, from + 40.0, READ, On::File(5), By::Interrupt);
    }
    let analysis = analyse(&tale.session(8000.0));
    let mut findings = analysis.findings.iter();
    let few = findings.find(|finding| finding.kind == "too-few-workers");
    let few = few.expect("too few workers");
    // Four keep up, each on a CPU for half of its time; together with the model they need 60 ms of two CPUs.
    assert_eq!(few.evidence["workers_needed"], 4.0);
    assert!(few.advice.contains("up to 70 % of the"), "{}", few.advice);
}

#[test]
fn turns_that_are_long_enough_are_steps() {
    let mut tale = alone("Data.__getitem__", false);
    tale.stack(1, &[4, 2, 1], TRAINER, times(0, 3))
        .stack(2, &[3, 1], TRAINER, times(3, 2));
    let steps = trainer(&tale, 8000.0).steps.expect("steps");
    assert_eq!(steps.clock, Clock::OwnBatches);
    // The first turn and the last are cut off.
    assert!(
        (76..=79).contains(&steps.spans.len()),
        "{}",
        steps.spans.len()
    );
    close(steps.mean_ns() / 1e8, 1.0, "length");
    // One sample in each half: some will have had none.
    let mut tale = alone("Data.__getitem__", false);
    tale.stack(1, &[4, 2, 1], TRAINER, times(0, 1))
        .stack(2, &[3, 1], TRAINER, times(3, 1));
    assert!(trainer(&tale, 8000.0).steps.is_none());
}

#[test]
fn what_a_loop_draws_from_is_input() {
    for (name, generator) in [("batches", true), ("Source.__next__", false)] {
        let mut tale = alone(name, generator);
        tale.stack(1, &[4, 1], TRAINER, times(0, 2))
            .stack(2, &[3, 1], TRAINER, times(2, 3));
        let trainer = trainer(&tale, 8000.0);
        close(share(&trainer, Kind::InputCpu), 0.4, name);
    }
}

#[test]
fn a_generator_that_trains_is_no_input() {
    let mut tale = alone("steps", true);
    tale.stack(1, &[4, 1], TRAINER, times(0, 2))
        .stack(2, &[3, 4, 1], TRAINER, times(2, 3));
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::InputCpu), 0.0, "input");
}

#[test]
fn transforms_that_are_modules_are_input_inside_the_loader() {
    let mut tale = alone("Data.__getitem__", false);
    tale.stack(1, &[3, 4, 2, 1], TRAINER, times(0, 3))
        .stack(2, &[3, 1], TRAINER, times(3, 2));
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::InputCpu), 0.6, "input");
}

#[test]
fn a_function_that_mostly_reads_is_input_and_the_loop_is_not() {
    let image = "/usr/lib/python3/dist-packages/PIL/Image.py";
    let mut tale = alone("load", false);
    tale.function(5, image, "Image.convert")
        .function(6, SCRIPT, "main");
    tale.stack(1, &[5, 4, 6, 1], TRAINER, times(0, 1))
        .stack(2, &[4, 6, 1], TRAINER, times(1, 2))
        .stack(3, &[6, 1], TRAINER, times(3, 2));
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::InputCpu), 0.6, "input");
}

#[test]
fn pictures_that_a_trainer_keeps_are_no_input() {
    let folder = "/usr/lib/python3/dist-packages/";
    // It resizes them for 20 of each 200 ms, and encodes them for 140.
    let kept = |keeps: &str, how: &str| {
        let mut tale = alone("preview", false);
        tale.function(5, &format!("{folder}PIL/Image.py"), "Image.resize")
            .function(6, &format!("{folder}{keeps}"), how)
            .function(7, &format!("{folder}PIL/ImageFile.py"), "_encode_tile");
        let (odd, even) = (times(0, 1).skip(1).step_by(2), times(0, 1).step_by(2));
        tale.stack(1, &[5, 4, 1], TRAINER, even)
            .stack(2, &[7, 6, 4, 1], TRAINER, odd.chain(times(1, 3)))
            .stack(3, &[3, 1], TRAINER, times(4, 1));
        let trainer = trainer(&tale, 8000.0);
        [Kind::InputCpu, Kind::HostCompute].map(|kind| share(&trainer, kind))
    };
    // What `preview` resizes it keeps: most of it goes through no library that makes batches.
    for (keeps, how) in [
        ("PIL/Image.py", "Image.save"),
        (
            "torch/utils/tensorboard/writer.py",
            "SummaryWriter.add_image",
        ),
    ] {
        let [input, host] = kept(keeps, how);
        assert!(input < 0.25 && host > 0.5, "{how}: {input} {host}");
    }
    close(kept("PIL/Image.py", "Image.convert")[0], 0.8, "decoded");
}

#[test]
fn making_workers_is_no_making_of_batches() {
    let mut tale = alone("run", false);
    tale.function(
        5,
        "/usr/lib/python3.11/multiprocessing/popen_fork.py",
        "Popen._launch",
    );
    // A trainer that was itself started so, whose loader makes workers for 40 of 100 ms.
    tale.stack(1, &[5, 2, 4, 5, 1], TRAINER, times(0, 2))
        .stack(2, &[3, 4, 5, 1], TRAINER, times(2, 2))
        .stack(3, &[2, 4, 5, 1], TRAINER, times(4, 1));
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::InputCpu), 0.2, "input");
}

#[test]
fn training_in_a_pools_process_is_computing() {
    let mut tale = alone("train", false);
    tale.function(5, "/usr/lib/python3.11/multiprocessing/pool.py", "worker")
        .stack(1, &[3, 4, 5, 1], TRAINER, times(0, 5));
    close(share(&trainer(&tale, 8000.0), Kind::InputCpu), 0.0, "input");
}

#[test]
fn few_samples_say_nothing() {
    let mut tale = alone("Data.__getitem__", false);
    tale.stack(1, &[4, 2, 1], TRAINER, times(0, 3).take(20));
    let trainer = trainer(&tale, 8000.0);
    close(share(&trainer, Kind::InputCpu), 0.0, "input");
}

/// Another thread of the trainer, and a word of the lock of its interpreter.
const OTHER: u32 = 101;
const GIL: u64 = 0x7000;

fn with_other_thread() -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, OTHER)
        .interpreter(TRAINER, GIL - 0x1b0, 0x1000);
    tale
}

#[test]
fn a_thread_that_keeps_the_interpreter_holds_the_step_thread_up() {
    // The other thread computes all the time, and gives the lock up when it is asked: 5 ms after each request, in which the
    // clock ends the wait. It is hardly ever without it.
    let mut tale = with_other_thread();
    for turn in 0..1300_u32 {
        let begin = f64::from(turn) * 6.0;
        // Of two words in turn, on two cache lines.
        let word = On::Futex(GIL + u64::from(turn % 2) * 0x40);
        tale.wait(TRAINER, begin, begin + 5.0, FUTEX, word, By::Interrupt);
        tale.wait(
            OTHER,
            begin + 5.0,
            begin + 5.06,
            FUTEX,
            word,
            By::Thread(TRAINER),
        );
    }
    let trainer = trainer(&tale, 7800.0);
    sums_up(&trainer);
    assert_eq!(trainer.cast.step_tid, TRAINER);
    let found = share(&trainer, Kind::Serialization);
    assert!((0.8..0.9).contains(&found), "{found}");
}

#[test]
fn a_main_thread_that_hardly_gets_the_interpreter_is_the_step_thread() {
    let mut tale = with_other_thread();
    for turn in 0..80_u32 {
        let begin = f64::from(turn) * 100.0;
        let word = On::Futex(GIL);
        tale.wait(TRAINER, begin, begin + 99.0, FUTEX, word, By::Thread(OTHER));
    }
    let trainer = trainer(&tale, 8000.0);
    assert_eq!(trainer.cast.step_tid, TRAINER);
    let found = share(&trainer, Kind::Serialization);
    assert!(found > 0.95, "{found}");
}

/// A trainer whose main thread waits for thread 102 in 50 of each 100 ms, in `waits_in`, while that one sleeps as always, but for `works` ms
/// at the end of it.
fn sleeping(waits_in: &str, works: f64) -> Tale {
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, 102)
        .function(1, SCRIPT, "<module>")
        .function(2, waits_in, "wait")
        .stack(1, &[1], TRAINER, times(3, 2))
        .stack(2, &[2, 1], TRAINER, times(0, 2));
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let (asleep, to) = (begin + 1.0, begin + 50.0);
        let awake = to - works;
        tale.wait(102, asleep, awake, SLEEP, On::Nothing, By::Interrupt);
        tale.wait(
            102,
            to + 0.1,
            begin + 100.9,
            SLEEP,
            On::Nothing,
            By::Interrupt,
        );
        tale.wait(
            TRAINER,
            asleep,
            to,
            FUTEX,
            On::Futex(0x7f00),
            By::Thread(102),
        );
    }
    tale
}

#[test]
fn a_lock_that_is_held_asleep_is_told_from_an_item_that_takes_time() {
    let trainer_of = |waits_in| trainer(&sleeping(waits_in, 0.1), 8000.0);
    let lock = trainer_of(SCRIPT);
    sums_up(&lock);
    close(share(&lock, Kind::Serialization), 0.49, "a lock");
    assert!(lock.cast.producers.is_empty());
    // Also where the one that has it works under it.
    let works = trainer(&sleeping(SCRIPT, 10.0), 8000.0);
    sums_up(&works);
    assert!(works.cast.producers.is_empty());
    close(share(&works, Kind::Serialization), 0.49, "and works");
    let item = trainer_of("/usr/lib/python3.11/threading.py");
    close(share(&item, Kind::Sleep), 0.49, "an item");
    assert!(item.cast.loader_threads.contains(&102));
    let steps = item.steps.expect("steps").spans.len();
    assert!((77..=80).contains(&steps), "{steps}");
}

/// Turns of 150 ms: 102 sleeps for 80 and then works for 70 on what the trainer wants after 90, and writes that to a file.
fn publishing(waits_in: &str) -> Tale {
    const PUBLISHER: u32 = 102;
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, PUBLISHER)
        .fileset(5, "/out", "ext4")
        .function(1, SCRIPT, "main")
        .function(2, waits_in, "wait")
        .stack(
            1,
            &[2, 1],
            TRAINER,
            (0..50).map(|turn| f64::from(turn) * 150.0 + 120.0),
        );
    for turn in 0..50 {
        let begin = f64::from(turn) * 150.0;
        let (awake, end) = (begin + 80.0, begin + 150.0);
        tale.wait(
            PUBLISHER,
            begin + 0.1,
            awake,
            FUTEX,
            On::Futex(0x9f00),
            By::Interrupt,
        );
        tale.wait(
            TRAINER,
            begin + 90.0,
            end,
            FUTEX,
            On::Futex(0x7f00),
            By::Thread(PUBLISHER),
        );
    }
    tale.ops(
        PUBLISHER,
        10.0,
        Op::Write,
        Class::File,
        5,
        50,
        50 << 20,
        50.0,
    );
    tale
}

#[test]
fn who_saves_under_a_lock_makes_no_batches() {
    let lock = trainer(&publishing(SCRIPT), 7500.0);
    sums_up(&lock);
    assert!(lock.cast.producers.is_empty());
    close(
        share(&lock, Kind::Sleep),
        0.0,
        "what it does without the lock",
    );
    let item = trainer(&publishing("/usr/lib/python3.11/threading.py"), 7500.0);
    assert!(item.cast.loader_threads.contains(&102));
}

#[test]
fn functions_that_loader_threads_run_are_named() {
    // Batches take 100 ms of a loader thread's, of which the trainer waits for 60.
    let mut tale = Tale::default();
    tale.process(TRAINER, 1)
        .thread(TRAINER, OTHER)
        .function(1, "/home/me/loader.py", "Loader.run")
        .function(2, "/home/me/loader.py", "decode")
        .stack(1, &[2, 1], OTHER, times(0, 4))
        .stack(2, &[1], OTHER, times(4, 1));
    for step in 0..80 {
        let begin = f64::from(step) * 100.0;
        let by = By::Thread(OTHER);
        tale.wait(
            TRAINER,
            begin + 40.0,
            begin + 99.9,
            FUTEX,
            On::Futex(0x9000),
            by,
        );
        tale.ops(OTHER, begin, Op::Read, Class::File, 5, 1, 1 << 20, 1.0);
    }
    let analysis = analyse(&tale.session(8000.0));
    let mut findings = analysis.findings.iter();
    let input = findings.find(|finding| finding.kind == "input-cpu");
    let input = input.expect("input-cpu");
    assert!(
        input.summary.contains("most of it in decode (loader.py:1)"),
        "{}",
        input.summary
    );
    assert_eq!(input.evidence["python"][0]["share"], 0.8);
}

/// In 400 of each 1000 ms `snapshot` writes to a file every 100 ms. Stacks at other times, and between the writes.
fn writes_now_and_then(other: &[u32], between: &[u32]) -> Trainer {
    let mut tale = alone("snapshot", false);
    let every = |from: u32, to: u32| {
        (0..8).flat_map(move |turn| (from..to).map(move |n| f64::from(turn * 1000 + n * 20 + 10)))
    };
    tale.function(5, SCRIPT, "fit")
        .stack(1, other, TRAINER, every(0, 30))
        .stack(2, between, TRAINER, every(30, 50))
        .fileset(5, "/out", "ext4");
    for turn in 0..8 {
        let begin = f64::from(turn * 1000);
        tale.touch(TRAINER, begin + 600.5, Op::Open, Class::File, 7, 0);
        for part in [700.0, 800.0, 900.0, 999.0] {
            tale.touch(TRAINER, begin + part, Op::Write, Class::File, 7, 8 << 20);
        }
    }
    trainer(&tale, 8000.0)
}

#[test]
fn compressing_between_writes_is_part_of_a_checkpoint() {
    let trainer = writes_now_and_then(&[3, 1], &[4, 1]);
    sums_up(&trainer);
    close(share(&trainer, Kind::Checkpoint), 0.4, "checkpoint");
    close(share(&trainer, Kind::Compute), 0.6, "compute");
    // The model's work, by which results are made that are written; and where no framework is seen, nobody knows what is done.
    // Nor is what a loader calls.
    for (other, between) in [
        (&[3, 1][..], &[3, 4, 1][..]),
        (&[5, 1], &[4, 1]),
        (&[3, 1], &[4, 2, 1]),
    ] {
        let trainer = writes_now_and_then(other, between);
        let saved = share(&trainer, Kind::Checkpoint);
        assert!(saved < 0.12, "{between:?}: {saved}");
    }
}

/// Steps of 80 ms: half of each is the job's own code, half the model's. After each a small file takes another one's place.
#[test]
fn work_beside_small_files_that_are_written_is_no_checkpoint() {
    let mut tale = alone("augment", false);
    tale.function(5, SCRIPT, "log_metrics");
    let every = |part: u32| (0..100).map(move |step| f64::from(step * 80 + part * 40 + 20));
    tale.stack(1, &[4, 1], TRAINER, every(0))
        .stack(2, &[3, 1], TRAINER, every(1))
        .fileset(5, "/out", "ext4");
    for step in 0..100 {
        let end = f64::from(step * 80) + 79.0;
        tale.touch(TRAINER, end, Op::Open, Class::File, 7, 0)
            .touch(TRAINER, end + 0.3, Op::Write, Class::File, 7, 200)
            .touch(TRAINER, end + 0.5, Op::Rename, Class::File, 7, 0);
    }
    let trainer = trainer(&tale, 8000.0);
    let saved = share(&trainer, Kind::Checkpoint);
    assert!(saved < 0.05, "{saved}");
}
