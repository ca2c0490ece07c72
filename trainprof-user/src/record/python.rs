//! Where the main threads of Python processes, and other busy ones, are in their programs, sampled.

use serde::{Deserialize, Serialize};

use crate::time::KtimeNs;

/// Where an interpreter's global state lies in a process's memory (`_PyRuntime`). The lock that its threads take turns on (GIL) is
/// part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PyRuntimeFact {
    pub pid: u32,
    pub address: u64,
    pub bytes: u64,
}

/// A function of a Python program, kept once for all processes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PyFunctionFact {
    /// From 1 on.
    pub number: u32,
    /// As the program names it (`co_filename`): often relative to a directory that nobody knows.
    pub file: String,
    /// With the names of the classes and functions around it, from Python 3.11 on.
    pub name: String,
    /// Where it begins in the file.
    pub line: u32,
    /// It is a generator, which goes on where it stopped.
    pub generator: bool,
}

/// A stack of them, kept once for all samples.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PyStackFact {
    /// From 1 on.
    pub number: u32,
    /// Numbers of [`PyFunctionFact`]s, the innermost first; of a deep stack the innermost ones only.
    pub functions: Vec<u32>,
}

/// Where the main thread of a process was, whether it ran or waited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PySampleFact {
    pub at: KtimeNs,
    pub pid: u32,
    /// Number of a [`PyStackFact`].
    pub stack: u32,
}

/// The same of another thread, of those that had a CPU for some of the last interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PyThreadSampleFact {
    pub at: KtimeNs,
    pub tid: u32,
    /// Number of a [`PyStackFact`].
    pub stack: u32,
}

/// Functions that the main thread of a process was in when it faulted. Before or after the fault itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PyFaultFact {
    /// Number of a [`super::stack::FaultFact`].
    pub fault: u32,
    /// Number of a [`PyStackFact`], of the innermost functions.
    pub stack: u32,
}
