//! What functions say about the stacks that they are in: by the libraries that they are of, and by Python's own protocols.

use std::collections::{BTreeMap, BTreeSet};

use super::ALWAYS;
use crate::{analysis::facts::Facts, record::fact::PyFunctionFact};

/// A function so many samples of which went through a library that reads or decodes is there for that.
const READS: f64 = 0.25;

/// Parts of paths of libraries that make batches, or what they are made of.
const LOADERS: [&str; 43] = [
    "/multiprocessing/queues.py",
    "/multiprocessing/connection.py",
    "/torch/utils/data/",
    "/torchdata/",
    "/torchvision/transforms/",
    "/torchvision/datasets/",
    "/torchvision/io/",
    "/torchaudio/",
    "/tensorflow/python/data/",
    "/data_adapters/",
    "-packages/datasets/",
    "-packages/grain/",
    "/webdataset/",
    "/litdata/",
    "/albumentations/",
    "/monai/data/",
    "/monai/transforms/",
    "/nvidia/dali/",
    "/transformers/tokenization_",
    "-packages/PIL/",
    "-packages/imageio/",
    "-packages/h5py/",
    "-packages/zarr/",
    "-packages/pyarrow/",
    "-packages/pandas/io/",
    "-packages/librosa/",
    "-packages/soundfile",
    "-packages/skimage/",
    "/streaming/base/",
    "-packages/ray/data/",
    "/fastai/data/",
    "/paddle/io/",
    "/torch_geometric/loader/",
    "/dgl/dataloading/",
    "-packages/xbatcher/",
    "-packages/av/",
    "-packages/decord/",
    "-packages/torchcodec/",
    "-packages/tifffile/",
    "-packages/nibabel/",
    "-packages/pydicom/",
    "-packages/tiktoken/",
    "-packages/sentencepiece/",
];

/// The same of those that models compute with.
const FRAMEWORKS: [&str; 27] = [
    "/torch/nn/",
    "/torch/optim/",
    "/torch/autograd/",
    "/torch/_tensor.py",
    "/torch/amp/",
    "/torch/cuda/",
    "/torch/distributed/",
    "/torch/_dynamo/",
    "/torch/_inductor/",
    "/torch/fx/",
    "/tensorflow/python/eager/",
    "/tensorflow/python/ops/",
    "/tensorflow/python/keras/",
    "-packages/keras/",
    "-packages/jax/",
    "-packages/jaxlib/",
    "-packages/flax/",
    "-packages/optax/",
    "-packages/sklearn/",
    "-packages/xgboost/",
    "-packages/lightgbm/",
    "/transformers/models/",
    "/torch_geometric/nn/",
    "/paddle/nn/",
    "/paddle/optimizer/",
    "/paddle/base/",
    "/paddle/tensor/",
];

/// The same of those that keep records of a training run, or draw them: no model, and no input.
const RECORDERS: [&str; 14] = [
    "/torch/utils/tensorboard/",
    "-packages/tensorboard/",
    "-packages/tensorboardX/",
    "-packages/wandb/",
    "-packages/mlflow/",
    "-packages/neptune/",
    "-packages/comet_ml/",
    "-packages/clearml/",
    "-packages/aim/",
    "-packages/swanlab/",
    "-packages/trackio/",
    "-packages/dvclive/",
    "-packages/visdom/",
    "-packages/matplotlib/",
];

/// The same of those that describe the running program to who looks for a mistake, or for what takes long: stacks, sources, warnings.
const DESCRIBERS: [&str; 13] = [
    "/torch/fx/traceback.py",
    "/torch/utils/_traceback.py",
    "/torch/autograd/profiler.py",
    "/torch/autograd/anomaly_mode.py",
    "/torch/profiler/",
    "/traceback.py",
    "/linecache.py",
    "/tracemalloc.py",
    "/inspect.py",
    "/warnings.py",
    "/bdb.py",
    "/pdb.py",
    "/cProfile.py",
];

/// Functions of [`LOADERS`] that write what they are given: a trainer that keeps pictures of what its model makes, say, makes no batch
/// with them. In a loader's own functions, which are outside of them, they are a part of that.
const WRITERS: [&str; 21] = [
    "save",
    "_save",
    "_save_all",
    "imsave",
    "imwrite",
    "mimsave",
    "mimwrite",
    "volwrite",
    "write",
    "write_png",
    "write_jpeg",
    "write_video",
    "write_table",
    "write_dataset",
    "write_feather",
    "to_csv",
    "to_parquet",
    "to_feather",
    "to_hdf",
    "to_json",
    "to_pickle",
];

/// Where processes are started: a loader that makes its workers makes no batch meanwhile.
const STARTERS: [&str; 2] = ["/multiprocessing/popen_", "/subprocess.py"];

/// What a stack is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Doing {
    Input,
    Model,
    Other,
}

/// What one function says about the stacks that it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Of a library that makes batches.
    Loader,
    /// Of a library that computes.
    Framework,
    /// Keeps records of the run, or writes files of the kind that loaders read.
    Recorder,
    /// Describes the running program.
    Describer,
    /// Starts processes.
    Starter,
    /// Code of the job's own that a loop draws items from.
    Source,
    /// Other code of the job's own.
    Own,
    Other,
}

pub(super) fn mark(function: &PyFunctionFact) -> Mark {
    let file = function.file.as_str();
    if RECORDERS.iter().any(|part| file.contains(part)) {
        return Mark::Recorder;
    }
    // A file of the job's own may have any name.
    if !is_own(file) && DESCRIBERS.iter().any(|part| file.contains(part)) {
        return Mark::Describer;
    }
    let name = function.name.rsplit('.').next().unwrap_or("");
    if LOADERS.iter().any(|part| file.contains(part)) {
        return if WRITERS.contains(&name) {
            Mark::Recorder
        } else {
            Mark::Loader
        };
    }
    if FRAMEWORKS.iter().any(|part| file.contains(part)) {
        return Mark::Framework;
    }
    if STARTERS.iter().any(|part| file.contains(part)) {
        return Mark::Starter;
    }
    if !is_own(file) {
        return Mark::Other;
    }
    let drawn = function.generator || matches!(name, "__next__" | "__getitem__");
    match name {
        // A comprehension is part of the function that it stands in.
        "<genexpr>" | "<listcomp>" | "<dictcomp>" | "<setcomp>" | "<lambda>" => Mark::Other,
        _ if drawn => Mark::Source,
        _ => Mark::Own,
    }
}

/// What the functions of a stack say, the innermost first: what a recorder has done by libraries that make batches is for its records.
pub(super) fn marks_of<'f>(
    functions: impl Iterator<Item = Option<&'f PyFunctionFact>>,
) -> Vec<Mark> {
    let mut out: Vec<Mark> = functions
        .map(|function| function.map_or(Mark::Other, mark))
        .collect();
    let recorder = out.iter().rposition(|mark| *mark == Mark::Recorder);
    for mark in &mut out[..recorder.unwrap_or(0)] {
        if *mark == Mark::Loader {
            *mark = Mark::Recorder;
        }
    }
    out
}

/// Beginnings of names of code that Python itself, or a package at run time, made: NumPy's dispatchers, torch.fx, attrs, decorator.
const MADE: [&str; 5] = [
    "<frozen",
    "<__array_function__",
    "<eval_with_key",
    "<attrs generated",
    "<decorator-gen",
];

/// Whether a file is the job's own: of no installed package, not of Python itself, and nothing that a package made. What a person typed has
/// a name in angle brackets too.
pub fn is_own(file: &str) -> bool {
    !MADE.iter().any(|name| file.starts_with(name))
        && !file.contains("/site-packages/")
        && !file.contains("/dist-packages/")
        && !file.contains("/lib/python3")
}

/// Whether a library's function only calls what it was wrapped around: a decorator's, or a module's call of its `forward`.
pub(super) fn is_wrapper(function: &PyFunctionFact) -> bool {
    !is_own(&function.file)
        && (function.name.contains("<locals>") || function.name.ends_with("_call_impl"))
}

/// The installed package that a file is of.
pub(super) fn package(file: &str) -> Option<&str> {
    ["/site-packages/", "/dist-packages/"]
        .iter()
        .find_map(|folder| file.split_once(folder))
        .and_then(|(_, inside)| inside.split('/').next())
}

/// Functions of the job's own that bring items: what loops draw from, and what mostly goes through libraries that read and decode;
/// but none under which a framework computes, such as a generator that yields a loss.
pub(super) fn sources(facts: &Facts, stacks: &BTreeMap<u32, Vec<Mark>>) -> BTreeSet<u32> {
    let python = &facts.session.python;
    let mut out = BTreeSet::new();
    let mut computes = BTreeSet::new();
    for samples in facts.all_python_samples() {
        // Of each function of this process: samples in it, and those of them that went on into a loader's library.
        let mut seen = BTreeMap::<u32, (usize, usize)>::new();
        for (_, stack) in samples {
            let (Some(marks), Some(functions)) = (stacks.get(stack), python.stacks.get(stack))
            else {
                continue;
            };
            for (depth, function) in functions.iter().enumerate() {
                let inner = &marks[..depth];
                let drawn = match marks[depth] {
                    Mark::Source => true,
                    Mark::Own => false,
                    _ => continue,
                };
                let loads = inner.contains(&Mark::Loader);
                if inner.contains(&Mark::Framework) && !loads {
                    computes.insert(*function);
                } else if drawn {
                    out.insert(*function);
                }
                let count = seen.entry(*function).or_default();
                count.0 += 1;
                count.1 += usize::from(loads);
            }
        }
        // A stack that changed while it was read lacks its outer functions.
        let whole = seen.values().map(|(all, _)| *all).max().unwrap_or(0);
        let loop_of_its_own = |count: usize| count as f64 > ALWAYS * whole as f64;
        let reads = seen
            .into_iter()
            .filter(|(_, (all, loads))| {
                *loads as f64 >= READS * *all as f64 && *loads > 0 && !loop_of_its_own(*all)
            })
            .map(|(function, _)| function);
        out.extend(reads);
    }
    out.retain(|function| !computes.contains(function));
    out
}

/// Whether functions, the innermost first, end in what describes the running program: what it only runs, as `python -m cProfile` does, is
/// not its own work.
pub(super) fn describes(marks: &[Mark]) -> bool {
    marks.iter().find(|mark| **mark != Mark::Other) == Some(&Mark::Describer)
}

/// What a stack, the innermost function first, is there for: the outermost function that tells decides.
pub(super) fn tell(marks: &[Mark], functions: &[u32], sources: &BTreeSet<u32>) -> Doing {
    for (depth, (mark, function)) in marks.iter().zip(functions).enumerate().rev() {
        let input = match mark {
            Mark::Loader => true,
            // What a model is made to tell of itself is no model.
            Mark::Framework if describes(&marks[..depth]) => return Doing::Other,
            Mark::Framework => return Doing::Model,
            Mark::Recorder => return Doing::Other,
            Mark::Source | Mark::Own => sources.contains(function),
            Mark::Describer | Mark::Starter | Mark::Other => false,
        };
        if input {
            let starts = marks[..depth].contains(&Mark::Starter);
            return if starts { Doing::Other } else { Doing::Input };
        }
    }
    Doing::Other
}
