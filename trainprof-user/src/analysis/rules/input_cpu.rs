//! CPU work of the loaders: decode, augment, collate, pickle.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::{
    Answer, Evidence, Look, loader,
    look::{self, clip, rounded},
    tiny_reads::tiny_reads,
    worker_respawn,
};
use crate::{
    analysis::{Kind, python::Place, running::decodes, spans::overlap, walk::What, words},
    record::fact::{PlaceClass, SampleFact},
    session::Id,
};

const KIND: Kind = Kind::InputCpu;

/// Taking batches in costs every job with workers a little: a smaller share than this is not worth a finding.
const MIN_TAKING_IN: f64 = 0.15;

/// A function of the job's own that takes so much (0–1) of the work is what most of it is in.
const MOST: f64 = 0.4;

/// So much of a worker more is none, and one that lacks so much of a CPU is still of use.
const SPARE: f64 = 0.15;

pub(super) fn rule(look: &Look) -> Answer {
    let takes_in = !look.trainer.taking_in.is_empty() && copies(look);
    if takes_in && look.share(KIND) < MIN_TAKING_IN {
        return Answer::Clear;
    }
    look.cause(KIND, |evidence| {
        let (summary, advice) = said(look, takes_in, evidence);
        match tiny_reads(look, KIND, evidence) {
            Some((said, first)) => (
                format!("{summary}; {said}"),
                format!("{first}; or {advice}"),
            ),
            None => (summary, advice),
        }
    })
}

/// The summary and the advice.
fn said(look: &Look, takes_in: bool, evidence: &mut Evidence) -> (String, String) {
    if let Some(said) = made_anew(look) {
        return said;
    }
    if let Some(said) = made_outside(look) {
        return said;
    }
    let functions = functions(look);
    if !functions.is_empty() {
        evidence.insert("functions", json!(functions));
    }
    let places = if takes_in {
        let trainer = look.trainer;
        let mut places = look.in_python(&[trainer.cast.trainer], Some(&trainer.taking_in));
        // The loop itself is on the stack of all that it calls.
        let computing = look.computing_in_python();
        places.retain(|place| {
            !computing
                .iter()
                .any(|other| other.function == place.function)
        });
        places
    } else {
        look.in_python(&makers(look), made_here(look))
    };
    if !places.is_empty() {
        evidence.insert("python", places.iter().map(look::python).collect());
    }
    let parallel = look.trainer.cast.parallel();
    evidence.insert("workers", json!(parallel));
    let most = if takes_in {
        places.first().filter(|place| place.share >= MOST).cloned()
    } else {
        look.mostly_in_python(&places, &makers(look), made_here(look))
    };
    let most = most
        .as_ref()
        .map(Place::name)
        .or_else(|| functions.first().cloned());
    let programs = programs(look);
    let runs = programs.as_ref();
    let most = runs
        .map(|(name, a_second)| format!("{a_second:.0} runs of {name} a second"))
        .or(most)
        .map_or_else(String::new, |name| format!(", most of it in {name}"));
    let summary = if parallel == 0 && look.trainer.own_batches_guessed {
        format!(
            "the trainer does other work than the framework's between its steps, as to make its batches itself{most}"
        )
    } else if parallel == 0 {
        format!("the trainer makes its batches itself, between its steps{most}")
    } else if takes_in && !places.is_empty() {
        format!("the trainer itself takes its batches in, or makes some itself{most}")
    } else if takes_in {
        format!(
            "the trainer itself takes its batches in: opens what the workers made, and draws what to ask them for{}",
            took(look)
        )
    } else if copies(look) {
        "the trainer itself copies its batches out of a pipe, and waits for those who write them there"
                .to_owned()
    } else if !look.behind_producers(KIND) {
        format!("the workers have the CPUs that the trainer wants{most}")
    } else {
        format!("{} are busy computing batches{most}", look.who(KIND))
    };
    let wanted = wanted_workers(look);
    if let Some(wanted) = wanted {
        evidence.insert("workers_needed", rounded(wanted));
    }
    let free = look.free_cpus();
    let cpus = look.trainer.terms.cpus;
    let more = look.let_on_more_cpus(evidence);
    if copies(look) {
        let named = places.first().filter(|place| place.share >= MOST);
        if let Some(place) = named.filter(|_| takes_in) {
            return (
                summary,
                format!(
                    "do what {} does in the workers (in the data set, or its collate_fn), or, where it draws the samples' numbers, cheaper and in advance",
                    place.name()
                ),
            );
        }
        if takes_in {
            return (
                    summary,
                    "hand over few large tensors instead of many small ones (collate them in the workers; larger batches), draw the samples' numbers cheaply and in advance, or let a thread take batches in (pin_memory); data that fits into memory needs no workers: take whole batches from it by their numbers".to_owned(),
                );
        }
        return (
                summary,
                "hand batches over in shared memory (tensors, multiprocessing.shared_memory) instead of writing their bytes into a pipe".to_owned(),
            );
    }
    if parallel == 0 && look.trainer.own_batches_guessed {
        return (
            summary,
            format!(
                "if that work makes batches, let a DataLoader with num_workers={:.0} do it while the trainer computes; if it is a metric, a log or garbage collection, do it less often",
                wanted.unwrap_or(1.0).min(cpus).ceil()
            ),
        );
    }
    let more_workers = |wanted: f64| {
        if look.makers_are_programs() {
            return format!(
                "run about {:.0} of these programs at a time, as workers that each run their own do (a DataLoader with num_workers)",
                wanted.ceil()
            );
        }
        match look.trainer.cast.workers.is_empty() {
            true if in_python(look) => "let processes make the batches in place of these threads, of which one at a time has the interpreter (a DataLoader with num_workers; in tf.data TensorFlow's own operations in place of Python, or several generators, each in a process)".to_owned(),
            true => format!("have about {:.0} threads load", wanted.ceil()),
            false if loader::are_of_its_own(look) => {
                format!("have about {:.0} such processes make batches", wanted.ceil())
            }
            false => format!("raise num_workers to about {:.0}", wanted.ceil()),
        }
    };
    let in_process = programs.map_or_else(String::new, |(name, _)| {
        format!("do what {name} does by a library in the process itself, or by one that goes on running, in place of a program for each sample; or ")
    });
    // A quota may be of less than one.
    let digits = usize::from(cpus < 2.0);
    let of_cpus = format!("of the {cpus:.digits$} here {free:.1} are free");
    let advice = match wanted {
        Some(wanted) if parallel == 0 && wanted <= free + SPARE => format!(
            "let a DataLoader with num_workers={:.0} do that work while the trainer computes",
            wanted.ceil()
        ),
        Some(wanted)
            if wanted > parallel as f64 + SPARE && wanted - parallel as f64 <= free + SPARE =>
        {
            more_workers(wanted)
        }
        Some(wanted) if !look.behind_producers(KIND) && wanted + SPARE < parallel as f64 => {
            format!(
                "{more}let the workers stand back: os.nice(10) in worker_init_fn, one thread in each (torch.set_num_threads(1)), and about {:.0} of them, which keep up with the trainer",
                wanted.ceil()
            )
        }
        _ => format!(
            "{more}{in_process}make the work on each sample cheaper (decode to the size that is needed, vectorise, do it once and store the result), or move it to the GPU or to more CPUs: {of_cpus}"
        ),
    };
    (summary, advice)
}

/// Whether most of what producers run is the Python interpreter.
fn in_python(look: &Look) -> bool {
    let makers = look.trainer.cast.batch_makers();
    let samples: Vec<_> = makers
        .flat_map(|tid| look.facts.samples(tid))
        .map(|sample| look.session.places.get(&sample.place))
        .collect();
    let interpreter = samples
        .iter()
        .flatten()
        .filter(|place| matches!(place.class, PlaceClass::Python | PlaceClass::PyMalloc));
    interpreter.count() * 2 > samples.len()
}

/// Workers that would keep up with the trainer: their work for the time in which the trainer needs a batch.
pub(super) fn wanted_workers(look: &Look) -> Option<f64> {
    let trainer = look.trainer;
    let own = trainer.terms.own;
    if own <= 0.0 {
        return None;
    }
    if trainer.cast.parallel() == 0 {
        let input = trainer.ns(KIND);
        let rest = trainer.wall - input;
        return (rest > 0.0).then(|| (input / rest).max(1.0));
    }
    let busy = trainer.demand.busy - trainer.demand.crowded;
    Some(busy / own)
}

/// What is said where most of it is making workers anew.
fn made_anew(look: &Look) -> Option<(String, String)> {
    if look.trainer.ns(Kind::WorkerStart) <= look.trainer.ns(KIND) {
        return None;
    }
    let Answer::Found(respawn) = worker_respawn::rule(look) else {
        return None;
    };
    Some((respawn.summary, respawn.advice))
}

/// What is said where most of it is waiting for a process outside the job, which makes what the trainer reads.
fn made_outside(look: &Look) -> Option<(String, String)> {
    let (outsiders, ns) = outside(look);
    if ns * 2.0 < look.trainer.ns(KIND) {
        return None;
    }
    Some((
        format!(
            "the trainer itself waited for what {} hands to it",
            outsiders.join(" and ")
        ),
        "make that process faster, let several of it work, or let it work ahead (a larger buffer between them)".to_owned(),
    ))
}

/// Whether a trainer with workers spends more of it on a CPU of its own than on waiting for theirs, or for a CPU.
fn copies(look: &Look) -> bool {
    let trainer = look.trainer;
    // While it spins for another thread, that one's wanting a CPU is told.
    let own: f64 = look
        .parts(KIND)
        .filter(|share| !share.in_stall && share.detail.tid == trainer.cast.step_tid)
        .filter(|share| {
            matches!(
                trainer.walked.leaves[share.leaf as usize].0.what,
                What::Run { .. }
            )
        })
        .map(|share| share.ns)
        .sum();
    trainer.cast.parallel() > 0 && own * 3.0 >= trainer.ns(KIND)
}

/// The program that workers start again and again, where most of their work is done there.
fn programs(look: &Look) -> Option<(String, f64)> {
    let cast = &look.trainer.cast;
    let mut all = 0;
    let mut started = BTreeMap::<&str, (u64, usize)>::new();
    for thread in look.session.threads.values() {
        if !cast.workers.contains(&thread.pid) {
            continue;
        }
        all += thread.run_ns;
        if (!cast.makers.contains(&thread.pid) || look.is_other_program(thread.pid))
            && let Some(process) = look.session.processes.get(&thread.pid)
        {
            let sums = started.entry(&process.name).or_default();
            sums.0 += thread.run_ns;
            sums.1 += usize::from(thread.key.tid == thread.pid);
        }
    }
    let (name, (ran, times)) = started.into_iter().max_by_key(|(_, sums)| *sums)?;
    let a_second = times as f64 / look.session.duration_s().max(1e-9);
    (ran as f64 >= MOST * all as f64 && a_second >= 1.0).then(|| (name.to_owned(), a_second))
}

/// Threads that make the batches: main ones of workers, loader threads, or the trainer's own.
fn makers(look: &Look) -> Vec<u32> {
    let cast = &look.trainer.cast;
    if cast.parallel() == 0 {
        return vec![cast.trainer];
    }
    let all: BTreeSet<u32> = cast.makers.union(&cast.producers).copied().collect();
    all.into_iter().collect()
}

/// When a trainer made them itself.
fn made_here<'a>(look: &'a Look) -> Option<&'a [(u64, u64)]> {
    (look.trainer.cast.parallel() == 0).then_some(look.trainer.own_batches.as_slice())
}

/// How long taking a batch in takes.
fn took(look: &Look) -> String {
    let stretches = &look.trainer.taking_in;
    let length: u64 = stretches.iter().map(|(from, to)| to - from).sum();
    let each = length as f64 / stretches.len().max(1) as f64;
    format!(", {} for each", words::time(each / 1e9))
}

/// Processes outside the job that the trainer waited for as for a worker, and for how long (ns).
fn outside(look: &Look) -> (Vec<String>, f64) {
    let all = look.outsiders(KIND);
    let ns = all.iter().map(|(_, ns)| ns).sum();
    // A program that is started again and again is one.
    let mut by_command = BTreeMap::<&str, (Id, f64, usize)>::new();
    for ((pid, command), ns) in &all {
        let entry = by_command.entry(command).or_insert((*pid, 0.0, 0));
        entry.1 += ns;
        entry.2 += 1;
    }
    let mut named: Vec<_> = by_command.into_iter().collect();
    named.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    let named = named
        .into_iter()
        .take(2)
        .map(|(command, (pid, _, times))| {
            let more = if times > 1 {
                format!(", and {} more like it", times - 1)
            } else {
                String::new()
            };
            format!(
                "process {pid} ({}{more})",
                clip(&command.replace('\n', " "), 60)
            )
        })
        .collect();
    (named, ns)
}

/// Places that samples hit while a trainer makes its batches are of that from so many times as often as elsewhere on: the stretches are known
/// no better than the samples by which they were found.
const OFTENER: f64 = 1.5;

/// Where samples of the producers fell, most first; of a trainer that makes its batches itself, those that fell while it did, and where
/// they hardly fall else.
fn functions(look: &Look) -> Vec<String> {
    let cast = &look.trainer.cast;
    let alone = cast.producers.is_empty();
    let own = &look.trainer.own_batches;
    let counts_here = |sample: &SampleFact| {
        !alone
            || if own.is_empty() {
                decodes(look.session, sample.place)
            } else {
                overlap(own, sample.at.0, sample.at.0 + 1) > 0
            }
    };
    let tids: Vec<u32> = if alone {
        vec![cast.step_tid]
    } else {
        cast.batch_makers().collect()
    };
    // Of each place, samples that count and others; and of all.
    let mut counts = BTreeMap::<u32, [usize; 2]>::new();
    let mut all = [0; 2];
    for sample in tids.iter().flat_map(|tid| look.facts.samples(*tid)) {
        let which = usize::from(!counts_here(sample));
        counts.entry(sample.place).or_default()[which] += 1;
        all[which] += 1;
    }
    let oftener = |[here, elsewhere]: [usize; 2]| {
        !alone || own.is_empty() || (here * all[1]) as f64 >= OFTENER * (elsewhere * all[0]) as f64
    };
    let mut counts: Vec<(u32, usize)> = counts
        .into_iter()
        .filter(|(_, counts)| oftener(*counts))
        .map(|(place, [here, _])| (place, here))
        .collect();
    counts.sort_by_key(|(place, n)| (std::cmp::Reverse(*n), *place));
    counts
        .into_iter()
        .filter(|(_, n)| *n > 0 && *n * 20 >= all[0])
        .take(3)
        .filter_map(|(place, _)| {
            let place = look.session.places.get(&place)?;
            match (&place.module, &place.function) {
                (Some(module), Some(function)) => {
                    Some(format!("{module}:{}", words::function(function)))
                }
                (Some(module), None) => Some(module.clone()),
                _ => None,
            }
        })
        .collect()
}
