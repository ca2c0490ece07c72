//! Which functions of the GPU's runtime, and of the framework, are watched, and what their arguments say.
//!
//! Only what waits, copies, allocates or frees: launches are too many. Names and arguments are those of
//! cuda_runtime_api.h and cuda.h. `_ptsz` and `_ptds` are the forms for programs built with a default stream per thread.
//!
//! Of virtual memory management the call that makes memory counts (`cuMemCreate`) and the one that gives it back: reserving
//! addresses and mapping would count the same bytes again. `cudaMalloc3D` and arrays have their sizes in structures, and are seen
//! as the driver's calls inside them, where they make such.
//!
//! The runtime asks the driver for its functions at run time (`cuGetProcAddress`) and gets those that the driver exports, so that
//! a probe on these is hit in calls of the runtime too. That counts nothing twice: of calls inside each other on one thread the
//! outermost is told. The driver's are for whoever passes the runtime by (XLA, NCCL, expandable segments of PyTorch); where they are
//! called often and tell nothing new they are let go.

//!
//! Of PyTorch one: every backward pass begins in it, called by Python or by C++. It is exported by this name since 1.8 (checked: 1.13 and
//! 2.15). What it calls for checkpointed parts of a model calls it again, deeper in the stack. And the one in which all stretches with a name
//! begin, which its optimisers give to each update of a model (checked: 2.15), and for Debian's 1.13, which calls another
//! that is not exported, the one by which it is called.
//!
//! Of other frameworks the one in which all that is compiled as a whole begins to run, or a round of boosting. JAX and TensorFlow have it in
//! C++, with arguments that change from version to version: it is known by how its mangled name begins (checked: jaxlib 0.4.25, 0.10.2 and
//! 0.12.0, TensorFlow 2.13 and 2.20). Results are put where the first argument says, and what is computed is the second.

use trainprof_common::gpu::{CallKind, EXECUTED, NO_ARG, OPERATOR_ARGUMENTS, SCOPE_NAME};

/// What is missing from a report where a probe is.
pub const GPU_CALLS: &str = "gpu-calls";
pub const BACKWARD_PASSES: &str = "backward-passes";
pub const UPDATES: &str = "updates";
pub const EXECUTIONS: &str = "framework-calls";

/// A library by the beginning of its file name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Library {
    Runtime,
    Driver,
    /// PyTorch's, with what runs on GPUs or not.
    Framework,
    /// What Python calls PyTorch by.
    Binding,
    /// TensorFlow's.
    Graphs,
    /// XLA as JAX has it.
    Xla,
    /// Of boosted trees.
    Boosting,
}

/// What libraries are by how their file names begin. `_jax.so` is a small one where `libjax_common.so` is there.
const LIBRARIES: [(&str, Library); 11] = [
    ("libcudart", Runtime),
    ("libcuda", Driver),
    ("libtorch_cpu", Framework),
    ("libtorch_python", Binding),
    ("libtensorflow_cc", Graphs),
    ("_pywrap_tensorflow_internal", Graphs),
    ("xla_extension", Xla),
    ("libjax_common", Xla),
    ("_jax", Xla),
    ("lib_lightgbm", Boosting),
    ("libxgboost", Boosting),
];

/// Where functions of a library are found, by which names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// By their whole names, in the table that the dynamic linker looks in.
    Exported,
    /// By how their names begin, among those that it exports.
    ExportedThatBegin,
    /// The same among all that it has, as long as it was not stripped.
    AnyThatBegin,
}

impl Library {
    /// The library that a file is by its name, e.g. `libcudart-d0da41ae.so.12` of a Python wheel.
    pub fn of(file_name: &str) -> Option<Self> {
        let is = |name: &str| {
            file_name
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with(['.', '-']) && rest.contains(".so"))
        };
        let found = LIBRARIES.iter().find(|(name, _)| is(name));
        found.map(|(_, library)| *library)
    }

    /// Whether a path may be one's.
    pub fn may_be_in(path: &str) -> bool {
        let name = path.rsplit('/').next().unwrap_or_default();
        LIBRARIES.iter().any(|(begin, _)| name.starts_with(begin))
    }
}

impl Library {
    /// Whether it is one of the GPU's.
    pub fn is_of_gpu(self) -> bool {
        matches!(self, Self::Runtime | Self::Driver)
    }

    /// Where its functions are found.
    pub fn symbols(self) -> Symbols {
        match self {
            Self::Runtime | Self::Driver | Self::Framework | Self::Binding | Self::Boosting => {
                Symbols::Exported
            }
            Self::Graphs => Symbols::ExportedThatBegin,
            Self::Xla => Symbols::AnyThatBegin,
        }
    }
}

/// One function.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub library: Library,
    pub name: &'static str,
    pub kind: CallKind,
    /// Which argument is a size in bytes, and which it is multiplied with.
    pub size: u8,
    pub times: u8,
}

impl Row {
    /// What its calls are in what is missing from a report.
    pub fn title(&self) -> String {
        match self.library {
            Library::Framework if self.kind != Backward => UPDATES.to_owned(),
            Library::Framework => BACKWARD_PASSES.to_owned(),
            Library::Binding => UPDATES.to_owned(),
            Library::Graphs | Library::Xla | Library::Boosting => EXECUTIONS.to_owned(),
            Library::Runtime | Library::Driver => format!("{GPU_CALLS}: {}", self.name),
        }
    }

    /// Whether calls are told when they return: else when they begin.
    pub fn returns(&self) -> bool {
        !matches!(self.kind, Backward | Scope | Operator | Execute)
    }

    /// Whether it allocates memory of a GPU, or gives it back: pinned memory is the host's.
    pub fn of_gpu(&self) -> bool {
        matches!(self.kind, Allocate | Free) && !self.name.contains("Host")
    }

    /// How many of its arguments, the first ones, are read.
    pub fn arguments(&self) -> usize {
        [
            self.size,
            self.times,
            match self.kind {
                Scope => SCOPE_NAME as u8,
                Operator => OPERATOR_ARGUMENTS as u8,
                _ if self.of_gpu() => 0,
                _ => NO_ARG,
            },
        ]
        .into_iter()
        .filter(|argument| *argument != NO_ARG)
        .map(|argument| usize::from(argument) + 1)
        .max()
        .unwrap_or(0)
    }
}

/// A copy of rows: width in bytes and number are these two arguments.
const fn rows(name: &'static str, kind: CallKind) -> Row {
    Row {
        times: 5,
        ..row(Library::Runtime, name, kind, 4)
    }
}

const fn row(library: Library, name: &'static str, kind: CallKind, size: u8) -> Row {
    Row {
        library,
        name,
        kind,
        size,
        times: NO_ARG,
    }
}

use CallKind::{Allocate, Backward, Copy, CopyAsync, Execute, Free, Operator, Scope, Synchronise};
use Library::{Binding, Boosting, Driver, Framework, Graphs, Runtime, Xla};

/// Every function.
pub const CATALOGUE: &[Row] = &[
    row(Runtime, "cudaStreamSynchronize", Synchronise, NO_ARG),
    row(Runtime, "cudaStreamSynchronize_ptsz", Synchronise, NO_ARG),
    row(Runtime, "cudaDeviceSynchronize", Synchronise, NO_ARG),
    row(Runtime, "cudaEventSynchronize", Synchronise, NO_ARG),
    row(Runtime, "cudaMemcpy", Copy, 2),
    row(Runtime, "cudaMemcpy_ptds", Copy, 2),
    rows("cudaMemcpy2D", Copy),
    rows("cudaMemcpy2D_ptds", Copy),
    // Its sizes are in a structure, as those of the driver's below: not looked at.
    row(Runtime, "cudaMemcpy3D", Copy, NO_ARG),
    row(Runtime, "cudaMemcpy3D_ptds", Copy, NO_ARG),
    row(Runtime, "cudaMemcpyToSymbol", Copy, 2),
    row(Runtime, "cudaMemcpyToSymbol_ptds", Copy, 2),
    row(Runtime, "cudaMemcpyFromSymbol", Copy, 2),
    row(Runtime, "cudaMemcpyFromSymbol_ptds", Copy, 2),
    row(Runtime, "cudaMemcpyAsync", CopyAsync, 2),
    row(Runtime, "cudaMemcpyAsync_ptsz", CopyAsync, 2),
    rows("cudaMemcpy2DAsync", CopyAsync),
    rows("cudaMemcpy2DAsync_ptsz", CopyAsync),
    row(Runtime, "cudaMemcpy3DAsync", CopyAsync, NO_ARG),
    row(Runtime, "cudaMemcpy3DAsync_ptsz", CopyAsync, NO_ARG),
    // Between devices the host waits for neither.
    row(Runtime, "cudaMemcpyPeer", CopyAsync, 4),
    row(Runtime, "cudaMemcpyPeerAsync", CopyAsync, 4),
    row(Runtime, "cudaMemcpyToSymbolAsync", CopyAsync, 2),
    row(Runtime, "cudaMemcpyToSymbolAsync_ptsz", CopyAsync, 2),
    row(Runtime, "cudaMemcpyFromSymbolAsync", CopyAsync, 2),
    row(Runtime, "cudaMemcpyFromSymbolAsync_ptsz", CopyAsync, 2),
    row(Runtime, "cudaMalloc", Allocate, 1),
    row(Runtime, "cudaMallocAsync", Allocate, 1),
    row(Runtime, "cudaMallocAsync_ptsz", Allocate, 1),
    row(Runtime, "cudaMallocFromPoolAsync", Allocate, 1),
    row(Runtime, "cudaMallocFromPoolAsync_ptsz", Allocate, 1),
    row(Runtime, "cudaMallocManaged", Allocate, 1),
    // Without what each row is padded by.
    Row {
        times: 3,
        ..row(Runtime, "cudaMallocPitch", Allocate, 2)
    },
    row(Runtime, "cudaHostAlloc", Allocate, 1),
    row(Runtime, "cudaMallocHost", Allocate, 1),
    row(Runtime, "cudaFree", Free, NO_ARG),
    row(Runtime, "cudaFreeAsync", Free, NO_ARG),
    row(Runtime, "cudaFreeAsync_ptsz", Free, NO_ARG),
    row(Runtime, "cudaFreeHost", Free, NO_ARG),
    // Pins memory that is there: what it costs is what allocating it pinned would.
    row(Runtime, "cudaHostRegister", Allocate, 1),
    row(Runtime, "cudaHostUnregister", Free, NO_ARG),
    row(Driver, "cuStreamSynchronize", Synchronise, NO_ARG),
    row(Driver, "cuStreamSynchronize_ptsz", Synchronise, NO_ARG),
    row(Driver, "cuCtxSynchronize", Synchronise, NO_ARG),
    row(Driver, "cuEventSynchronize", Synchronise, NO_ARG),
    row(Driver, "cuMemcpy", Copy, 2),
    row(Driver, "cuMemcpy_ptds", Copy, 2),
    row(Driver, "cuMemcpyHtoD_v2", Copy, 2),
    row(Driver, "cuMemcpyHtoD_v2_ptds", Copy, 2),
    row(Driver, "cuMemcpyDtoH_v2", Copy, 2),
    row(Driver, "cuMemcpyDtoH_v2_ptds", Copy, 2),
    row(Driver, "cuMemcpy2D_v2", Copy, NO_ARG),
    row(Driver, "cuMemcpy2D_v2_ptds", Copy, NO_ARG),
    row(Driver, "cuMemcpy2DUnaligned_v2", Copy, NO_ARG),
    row(Driver, "cuMemcpy2DUnaligned_v2_ptds", Copy, NO_ARG),
    row(Driver, "cuMemcpy3D_v2", Copy, NO_ARG),
    row(Driver, "cuMemcpy3D_v2_ptds", Copy, NO_ARG),
    row(Driver, "cuMemcpy2DAsync_v2", CopyAsync, NO_ARG),
    row(Driver, "cuMemcpy2DAsync_v2_ptsz", CopyAsync, NO_ARG),
    row(Driver, "cuMemcpy3DAsync_v2", CopyAsync, NO_ARG),
    row(Driver, "cuMemcpy3DAsync_v2_ptsz", CopyAsync, NO_ARG),
    row(Driver, "cuMemcpyPeer", CopyAsync, 4),
    row(Driver, "cuMemcpyPeer_ptds", CopyAsync, 4),
    row(Driver, "cuMemcpyPeerAsync", CopyAsync, 4),
    row(Driver, "cuMemcpyPeerAsync_ptsz", CopyAsync, 4),
    row(Driver, "cuMemcpyAsync", CopyAsync, 2),
    row(Driver, "cuMemcpyAsync_ptsz", CopyAsync, 2),
    row(Driver, "cuMemcpyHtoDAsync_v2", CopyAsync, 2),
    row(Driver, "cuMemcpyHtoDAsync_v2_ptsz", CopyAsync, 2),
    row(Driver, "cuMemcpyDtoHAsync_v2", CopyAsync, 2),
    row(Driver, "cuMemcpyDtoHAsync_v2_ptsz", CopyAsync, 2),
    row(Driver, "cuMemAlloc_v2", Allocate, 1),
    row(Driver, "cuMemAllocAsync", Allocate, 1),
    row(Driver, "cuMemAllocAsync_ptsz", Allocate, 1),
    row(Driver, "cuMemAllocFromPoolAsync", Allocate, 1),
    row(Driver, "cuMemAllocFromPoolAsync_ptsz", Allocate, 1),
    row(Driver, "cuMemAllocManaged", Allocate, 1),
    Row {
        times: 3,
        ..row(Driver, "cuMemAllocPitch_v2", Allocate, 2)
    },
    row(Driver, "cuMemCreate", Allocate, 1),
    row(Driver, "cuMemHostAlloc", Allocate, 1),
    row(Driver, "cuMemAllocHost_v2", Allocate, 1),
    row(Driver, "cuMemFree_v2", Free, NO_ARG),
    row(Driver, "cuMemFreeAsync", Free, NO_ARG),
    row(Driver, "cuMemFreeAsync_ptsz", Free, NO_ARG),
    row(Driver, "cuMemRelease", Free, NO_ARG),
    row(Driver, "cuMemFreeHost", Free, NO_ARG),
    row(Driver, "cuMemHostRegister_v2", Allocate, 1),
    row(Driver, "cuMemHostUnregister", Free, NO_ARG),
    // torch::autograd::Engine::execute(roots, inputs, keep_graph, create_graph, accumulate_grad, outputs)
    row(
        Framework,
        "_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_",
        Backward,
        NO_ARG,
    ),
    // torch::autograd::profiler::record_function_enter_new(name, args), with libstdc++'s strings and optionals of now, or PyTorch's
    // own optional, and with the strings of before 2015.
    row(
        Framework,
        "_ZN5torch8autograd8profiler25record_function_enter_newERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8optionalIS7_E",
        Scope,
        NO_ARG,
    ),
    row(
        Framework,
        "_ZN5torch8autograd8profiler25record_function_enter_newERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKN3c108optionalIS7_EE",
        Scope,
        NO_ARG,
    ),
    row(
        Framework,
        "_ZN5torch8autograd8profiler25record_function_enter_newERKSsRKSt8optionalISsE",
        Scope,
        NO_ARG,
    ),
    row(
        Framework,
        "_ZN5torch8autograd8profiler25record_function_enter_newERKSsRKN3c108optionalISsEE",
        Scope,
        NO_ARG,
    ),
    // torch::jit::invokeOperatorFromPython(operations, args, kwargs, key), by which Python begins such stretches and calls custom operators.
    row(
        Binding,
        "_ZN5torch3jit24invokeOperatorFromPythonERKSt6vectorISt10shared_ptrINS0_8OperatorEESaIS4_EEN8pybind114argsERKNS9_6kwargsEN3c108optionalINSE_11DispatchKeyEEE",
        Operator,
        NO_ARG,
    ),
    // tensorflow::KernelAndDeviceFunc::Run(container, inputs, outputs, cancellation, ...): a tf.function, such as the one that Keras fits by.
    row(
        Graphs,
        "_ZN10tensorflow19KernelAndDeviceFunc3RunEP",
        Execute,
        EXECUTED as u8,
    ),
    // xla::ifrt::PjRtLoadedExecutable::Execute(arguments, options, devices): whatever device it is for.
    row(
        Xla,
        "_ZN3xla4ifrt20PjRtLoadedExecutable7ExecuteEN",
        Execute,
        EXECUTED as u8,
    ),
    // A round is one whichever model it is of: others of a search, or of folds, have the same addresses in turn.
    row(Boosting, "LGBM_BoosterUpdateOneIter", Execute, NO_ARG),
    row(Boosting, "LGBM_BoosterUpdateOneIterCustom", Execute, NO_ARG),
    row(Boosting, "XGBoosterUpdateOneIter", Execute, NO_ARG),
    row(Boosting, "XGBoosterTrainOneIter", Execute, NO_ARG),
    row(Boosting, "XGBoosterBoostOneIter", Execute, NO_ARG),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn libraries_are_known_by_file_names() {
        for (name, library) in [
            ("libcudart.so.12", Some(Runtime)),
            ("libcudart.so", Some(Runtime)),
            ("libcudart-d0da41ae.so.11.0", Some(Runtime)),
            ("libcuda.so.1", Some(Driver)),
            ("libcuda.so.550.54.15", Some(Driver)),
            ("libcudadebugger.so.1", None),
            ("libcudart.txt", None),
            ("libcudnn.so.9", None),
            ("libcuda", None),
            ("libtorch_cpu.so", Some(Framework)),
            ("libtorch_cpu.so.1.13", Some(Framework)),
            ("libtorch_python.so.1.13", Some(Binding)),
            ("libtorch_cuda.so", None),
            ("libtensorflow_cc.so.2", Some(Graphs)),
            ("_jax.so", Some(Xla)),
            ("_jax_plugin.so", None),
            ("xla_extension.cpython-311-x86_64-linux-gnu.so", Some(Xla)),
            ("lib_lightgbm.so", Some(Boosting)),
        ] {
            assert_eq!(Library::of(name), library, "{name}");
            let path = format!("/usr/lib/{name}");
            assert!(library.is_none() || Library::may_be_in(&path), "{name}");
        }
    }

    #[test]
    fn as_many_arguments_are_read_as_sizes_and_addresses_need() {
        let find = |name: &str| CATALOGUE.iter().find(|row| row.name == name);
        for (name, arguments) in [
            ("cuMemCreate", 2),
            ("cudaMallocPitch", 4),
            ("cuMemRelease", 1),
            ("cudaFreeHost", 0),
            ("cudaDeviceSynchronize", 0),
            ("cudaMemcpy2DAsync", 6),
            ("cudaMemcpyPeer", 5),
            ("XGBoosterUpdateOneIter", 0),
            ("_ZN10tensorflow19KernelAndDeviceFunc3RunEP", 2),
        ] {
            assert_eq!(find(name).expect(name).arguments(), arguments, "{name}");
        }
    }

    #[test]
    fn each_function_is_there_once() {
        let names: BTreeSet<_> = CATALOGUE.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), CATALOGUE.len());
    }
}
