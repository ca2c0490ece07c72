//! The interpreter and the libraries that a process has mapped, with their versions where a file tells them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{EnvError, process, read_text};

/// Larger tables of mappings are cut (a large PyTorch job has about 5 000 lines, 0.5 MB).
const MAPS_LIMIT: u64 = 32 << 20;
/// Entries read of a directory of Python packages (large environments have about 2 000).
const MAX_PACKAGES: usize = 8192;
/// Directories of Python packages looked into.
const MAX_PACKAGE_DIRS: usize = 8;

/// What a process has loaded.
#[derive(Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
pub struct FrameworkFacts {
    /// CPython's version as far as its file's name tells: `3.11`. `None` when the process has none mapped.
    pub python: Option<String>,
    /// (name, version) of each known library, sorted by name, each name once.
    pub libraries: Vec<(String, Option<String>)>,
}

impl FrameworkFacts {
    /// Reads `/proc/PID/maps` (`proc_pid_maps(5)`), and for Python packages the names in the directory around
    /// the package, as the process sees it.
    ///
    /// # Errors
    /// When the process has ended or may not be read (PTRACE_MODE_READ_FSCREDS, `ptrace(2)`). A directory that
    /// may not be read leaves versions `None`.
    pub fn read(pid: u32) -> Result<FrameworkFacts, EnvError> {
        let maps = read_text(&process::shared(pid, "maps"), MAPS_LIMIT)?;
        Ok(FrameworkFacts::read_from(
            &maps,
            &process::shared(pid, "root"),
        ))
    }

    fn read_from(maps: &str, root: &Path) -> FrameworkFacts {
        let loaded = decode_maps(maps);
        let package_dirs: BTreeSet<&str> = loaded
            .libraries
            .values()
            .filter_map(|found| found.packages)
            .collect();
        let installed = package_dirs
            .into_iter()
            .take(MAX_PACKAGE_DIRS)
            .map(|dir| (dir, read_versions(root, dir)))
            .collect();
        decide(&loaded, &installed)
    }

    /// The version of a library; `None` when it is not loaded or its version is not known.
    pub fn version(&self, name: &str) -> Option<&str> {
        let (_, version) = self.libraries.iter().find(|(library, _)| library == name)?;
        version.as_deref()
    }

    /// Whether a framework for training is loaded.
    pub fn trains(&self) -> bool {
        FOR_TRAINING.iter().any(|name| self.has(name))
    }

    /// Whether a library is loaded, whatever its version.
    pub fn has(&self, name: &str) -> bool {
        self.libraries.iter().any(|(library, _)| library == name)
    }
}

/// Names and versions of the Python distributions in one directory, by normalised name.
type Versions = BTreeMap<String, String>;

/// Reads the distributions in `dir`. A mapping's path has no symbolic links in it, so it does not lead out of the
/// process's root.
fn read_versions(root: &Path, dir: &str) -> Versions {
    let Ok(entries) = std::fs::read_dir(root.join(dir.trim_start_matches('/'))) else {
        return Versions::new();
    };
    entries
        .take(MAX_PACKAGES)
        .flatten()
        .filter_map(|entry| decode_distribution(&entry.file_name().to_string_lossy()))
        .collect()
}

/// `torch-2.4.0+cu121.dist-info`, or `NAME-VERSION[-pyX.Y].egg-info` of older and distributions' packages.
fn decode_distribution(file_name: &str) -> Option<(String, String)> {
    let stem = file_name
        .strip_suffix(".dist-info")
        .or_else(|| file_name.strip_suffix(".egg-info"))?;
    let (name, rest) = stem.split_once('-')?;
    let version = rest
        .split("-py")
        .next()
        .filter(|version| starts_with_digit(version))?;
    Some((normalise(name), version.to_owned()))
}

/// Names of distributions are equal up to case and `-`, `_`, `.` (Python's "Names and normalization").
fn normalise(name: &str) -> String {
    name.to_ascii_lowercase().replace(['-', '.'], "_")
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// How a library is known.
struct Rule {
    name: &'static str,
    /// The file's name up to `.so`, or up to the hash that wheels put behind a hyphen.
    files: &'static [&'static str],
    /// The Python package that any file of it lies in, whatever the file's name.
    package: Option<&'static str>,
    /// Distributions, by normalised name, one of which tells the version; a trailing `*` stands for any end.
    distributions: &'static [&'static str],
    /// Whether the number behind `.so` is the library's own version and not only that of its interface (as
    /// the 2 of `libjemalloc.so.2`, which is jemalloc 4 and 5).
    versioned: bool,
}

/// A library whose file name does not tell its version.
const fn library(name: &'static str, files: &'static [&'static str]) -> Rule {
    Rule {
        name,
        files,
        package: None,
        distributions: &[],
        versioned: false,
    }
}

/// A library whose file name tells its version.
const fn versioned(name: &'static str, files: &'static [&'static str]) -> Rule {
    Rule {
        versioned: true,
        ..library(name, files)
    }
}

/// As [`versioned`], and a Python distribution that may have brought it tells it better.
const fn distributed(
    name: &'static str,
    files: &'static [&'static str],
    distributions: &'static [&'static str],
) -> Rule {
    Rule {
        distributions,
        ..versioned(name, files)
    }
}

/// The native part of a Python package, known by the directory that it lies in.
const fn packaged(
    name: &'static str,
    package: &'static str,
    distributions: &'static [&'static str],
) -> Rule {
    Rule {
        package: Some(package),
        distributions,
        ..library(name, &[])
    }
}

const TORCH_FILES: &[&str] = &[
    "libtorch",
    "libtorch_cpu",
    "libtorch_cuda",
    "libtorch_hip",
    "libtorch_python",
];

/// Those that train models.
const FOR_TRAINING: [&str; 3] = ["torch", "tensorflow", "jaxlib"];

/// The libraries that matter to a diagnosis. One row adds one.
const RULES: [Rule; 26] = [
    Rule {
        // Distributions put the libraries elsewhere and leave the package's own modules here.
        package: Some("torch"),
        ..distributed("torch", TORCH_FILES, &["torch"])
    },
    distributed(
        "tensorflow",
        &[
            "libtensorflow_framework",
            "libtensorflow_cc",
            "_pywrap_tensorflow_internal",
        ],
        &[
            "tensorflow",
            "tensorflow_cpu",
            "tensorflow_intel",
            "intel_tensorflow",
            "tensorflow_rocm",
            "tf_nightly",
        ],
    ),
    packaged("jaxlib", "jaxlib", &["jaxlib"]),
    packaged("xgboost", "xgboost", &["xgboost", "xgboost_cpu"]),
    packaged("lightgbm", "lightgbm", &["lightgbm"]),
    packaged("catboost", "catboost", &["catboost"]),
    packaged("paddle", "paddle", &["paddlepaddle", "paddlepaddle_gpu"]),
    packaged("numpy", "numpy", &["numpy"]),
    packaged("opencv", "cv2", &["opencv_*"]),
    packaged("pillow", "PIL", &["pillow", "pillow_simd"]),
    packaged("pyarrow", "pyarrow", &["pyarrow"]),
    packaged("ray", "ray", &["ray"]),
    packaged("dali", "nvidia/dali", &["nvidia_dali_*"]),
    distributed("cuda-runtime", &["libcudart"], &["nvidia_cuda_runtime*"]),
    versioned("libcuda", &["libcuda"]),
    versioned("libnvidia-ml", &["libnvidia-ml"]),
    distributed("nccl", &["libnccl"], &["nvidia_nccl_*"]),
    library("rccl", &["librccl"]),
    distributed("cudnn", &["libcudnn"], &["nvidia_cudnn_*"]),
    versioned("hip-runtime", &["libamdhip64"]),
    library("mpi", &["libmpi"]),
    library("jemalloc", &["libjemalloc"]),
    library("tcmalloc", &["libtcmalloc", "libtcmalloc_minimal"]),
    versioned("mimalloc", &["libmimalloc"]),
    versioned("glibc", &["libc"]),
    library(
        "musl",
        &[
            "ld-musl-x86_64",
            "ld-musl-aarch64",
            "libc.musl-x86_64",
            "libc.musl-aarch64",
        ],
    ),
];

/// What the mapped paths tell.
#[derive(Default)]
struct Loaded<'a> {
    python: Option<String>,
    /// By the index of the rule.
    libraries: BTreeMap<usize, Found<'a>>,
}

#[derive(Default, Clone)]
struct Found<'a> {
    /// From the file's own name.
    version: Option<String>,
    /// The directory of Python packages that the file lies below.
    packages: Option<&'a str>,
}

/// The paths in a table of mappings: the sixth field, to the end of the line.
fn mapped_paths(maps: &str) -> BTreeSet<&str> {
    let path = |line: &'_ str| -> Option<usize> {
        let mut at = 0;
        for _ in 0..5 {
            at += line[at..].find(' ')?;
            at += line[at..].len() - line[at..].trim_start_matches(' ').len();
        }
        line[at..].starts_with('/').then_some(at)
    };
    maps.lines()
        .filter_map(|line| Some(&line[path(line)?..]))
        // The file was replaced or removed after it was mapped, as a package upgrade does.
        .map(|path| path.strip_suffix(" (deleted)").unwrap_or(path))
        .collect()
}

fn decode_maps(maps: &str) -> Loaded<'_> {
    let mut loaded = Loaded::default();
    for path in mapped_paths(maps) {
        let file = path.rsplit('/').next().unwrap_or(path);
        if loaded.python.is_none() {
            loaded.python = python_version(file);
        }
        for (index, rule) in RULES.iter().enumerate() {
            let Some(version) = rule.matches(path, file) else {
                continue;
            };
            let found = loaded.libraries.entry(index).or_default();
            // Several files of one library: the most detailed name wins.
            if found.version.as_ref().map(String::len) < version.as_ref().map(String::len) {
                found.version = version;
            }
            if found.packages.is_none() && !rule.distributions.is_empty() {
                found.packages = packages_dir(path);
            }
        }
    }
    loaded
}

impl Rule {
    /// `Some` when the file is this library's, with the version in its name.
    fn matches(&self, path: &str, file: &str) -> Option<Option<String>> {
        if self
            .package
            .is_some_and(|package| lies_in_package(path, package))
            && file.contains(".so")
        {
            return Some(None);
        }
        let (stem, version) = split_library(file)?;
        self.files
            .contains(&stem)
            .then(|| version.filter(|_| self.versioned))
    }
}

fn lies_in_package(path: &str, package: &str) -> bool {
    packages_dir(path)
        .and_then(|dir| {
            path.strip_prefix(dir)?
                .strip_prefix('/')?
                .strip_prefix(package)
        })
        .is_some_and(|inside| inside.starts_with('/'))
}

/// Splits a shared library's name in stem and version: `libcudart.so.12.4.127`, `libc-2.31.so`, and with the hash
/// of a wheel's own copy `libcudart-9335f6a2.so.12`.
fn split_library(file: &str) -> Option<(&str, Option<String>)> {
    let at = file.find(".so")?;
    let (stem, rest) = (&file[..at], &file[at + 3..]);
    let version = match rest.strip_prefix('.') {
        Some(version) => Some(version).filter(|version| starts_with_digit(version)),
        None if rest.is_empty() => None,
        None => return None,
    };
    let (stem, tail) = match stem.rsplit_once('-') {
        Some((name, tail)) if is_version(tail) => (name, Some(tail)),
        Some((name, tail))
            if tail.len() >= 8 && tail.bytes().all(|byte| byte.is_ascii_hexdigit()) =>
        {
            (name, None)
        }
        _ => (stem, None),
    };
    // The C library's 6 is the version of its interface since 1997, not its own.
    let version = tail.or(version.filter(|_| stem != "libc"));
    Some((stem, version.map(str::to_owned)))
}

fn is_version(text: &str) -> bool {
    text.contains('.')
        && text
            .split('.')
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// `3.11` of `python3.11`, `libpython3.11.so.1.0` or `libpython3.13t.so.1.0`.
pub(crate) fn python_version(file: &str) -> Option<String> {
    let rest = file
        .strip_prefix("lib")
        .unwrap_or(file)
        .strip_prefix("python")?;
    let version = rest
        .split(".so")
        .next()
        .unwrap_or(rest)
        .trim_end_matches(['d', 't', 'm']);
    is_version(version).then(|| version.to_owned())
}

/// The directory of packages that a path lies below: the innermost `site-packages` or `dist-packages`.
fn packages_dir(path: &str) -> Option<&str> {
    ["/site-packages/", "/dist-packages/"]
        .iter()
        .filter_map(|dir| Some(path.rfind(dir)? + dir.len() - 1))
        .max()
        .map(|end| &path[..end])
}

/// The distribution's version is the library's own; that in a file's name is often only its interface's.
fn decide(loaded: &Loaded<'_>, installed: &BTreeMap<&str, Versions>) -> FrameworkFacts {
    let mut libraries: Vec<(String, Option<String>)> = loaded
        .libraries
        .iter()
        .map(|(&index, found)| {
            let rule = &RULES[index];
            let versions = found.packages.and_then(|dir| installed.get(dir));
            let version = versions.and_then(|versions| rule.version_in(versions));
            (
                rule.name.to_owned(),
                version.or_else(|| found.version.clone()),
            )
        })
        .collect();
    libraries.sort();
    FrameworkFacts {
        python: loaded.python.clone(),
        libraries,
    }
}

impl Rule {
    fn version_in(&self, versions: &Versions) -> Option<String> {
        self.distributions
            .iter()
            .find_map(|&wanted| match wanted.strip_suffix('*') {
                Some(start) => {
                    let (_, version) = versions.iter().find(|(name, _)| name.starts_with(start))?;
                    Some(version.clone())
                }
                None => versions.get(wanted).cloned(),
            })
    }
}

#[cfg(test)]
mod tests;
