//! The interpreter and the libraries that a process has mapped, with their versions where a file tells them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::{EnvError, read_text};

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
        let maps = read_text(&PathBuf::from(format!("/proc/{pid}/maps")), MAPS_LIMIT)?;
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        Ok(FrameworkFacts::read_from(&maps, &root))
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
const RULES: [Rule; 22] = [
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
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn library_names_are_split() {
        let cases = [
            (
                "libcudart.so.12.4.127",
                Some(("libcudart", Some("12.4.127"))),
            ),
            (
                "libcudart-9335f6a2.so.11.0",
                Some(("libcudart", Some("11.0"))),
            ),
            ("libc.so.6", Some(("libc", None))),
            ("libc-2.31.so", Some(("libc", Some("2.31")))),
            ("libtorch_cpu.so", Some(("libtorch_cpu", None))),
            ("libtorch_cpu.so.1.13", Some(("libtorch_cpu", Some("1.13")))),
            (
                "libnvidia-ml.so.550.54.15",
                Some(("libnvidia-ml", Some("550.54.15"))),
            ),
            ("ld-musl-x86_64.so.1", Some(("ld-musl-x86_64", Some("1")))),
            ("libsomething.sock", None),
            ("data.bin", None),
        ];
        for (file, expected) in cases {
            let expected = expected
                .map(|(stem, version): (_, Option<&str>)| (stem, version.map(str::to_owned)));
            assert_eq!(split_library(file), expected, "{file}");
        }
    }

    #[test]
    fn python_is_known_by_its_file() {
        let cases = [
            ("python3.11", Some("3.11")),
            ("libpython3.12.so.1.0", Some("3.12")),
            ("libpython3.13t.so.1.0", Some("3.13")),
            ("python2.7", Some("2.7")),
            ("python3", None),
            ("python3.11-config", None),
            ("libpythonic.so", None),
        ];
        for (file, expected) in cases {
            assert_eq!(python_version(file).as_deref(), expected, "{file}");
        }
    }

    #[test]
    fn distributions_are_decoded() {
        let cases = [
            (
                "torch-2.4.0+cu121.dist-info",
                Some(("torch", "2.4.0+cu121")),
            ),
            ("Pillow-10.1.0.dist-info", Some(("pillow", "10.1.0"))),
            (
                "nvidia_nccl_cu12-2.20.5.dist-info",
                Some(("nvidia_nccl_cu12", "2.20.5")),
            ),
            ("numpy-1.24.2.egg-info", Some(("numpy", "1.24.2"))),
            ("six-1.16.0-py3.11.egg-info", Some(("six", "1.16.0"))),
            ("torch", None),
            ("torch.dist-info", None),
            ("a-b.dist-info", None),
        ];
        for (file, expected) in cases {
            let expected = expected.map(|(name, version)| (name.to_owned(), version.to_owned()));
            assert_eq!(decode_distribution(file), expected, "{file}");
        }
    }

    #[test]
    fn paths_are_the_end_of_the_line() {
        let maps = "\
00400000-00452000 r-xp 00000000 08:02 173521      /usr/bin/my tool
7f00-7f01 rw-p 00000000 00:00 0
7ffc-7ffd rw-p 00000000 00:00 0                          [stack]
7f02-7f03 r--s 00000000 00:01 5                          /memfd:x (deleted)
7f02-7f03 r--p 00000000 08:02 9                          /lib/old.so (deleted)
short
";
        assert_eq!(
            mapped_paths(maps).into_iter().collect::<Vec<_>>(),
            ["/lib/old.so", "/memfd:x", "/usr/bin/my tool"]
        );
    }

    fn maps_of(paths: &[&str]) -> String {
        let line = |path: &&str| {
            format!("7f0000000000-7f0000001000 r-xp 00000000 08:02 7                  {path}\n")
        };
        paths.iter().map(line).collect()
    }

    fn facts(python: Option<&str>, libraries: &[(&str, Option<&str>)]) -> FrameworkFacts {
        FrameworkFacts {
            python: python.map(str::to_owned),
            libraries: libraries
                .iter()
                .map(|&(name, version)| (name.to_owned(), version.map(str::to_owned)))
                .collect(),
        }
    }

    #[test]
    fn versions_come_from_the_packages_beside_the_library() {
        let root = tempfile::tempdir().expect("a folder");
        for name in [
            "torch-2.4.0+cu121.dist-info",
            "nvidia_cuda_runtime_cu12-12.1.105.dist-info",
            "nvidia_nccl_cu12-2.20.5.dist-info",
            "numpy-2.1.0.dist-info",
            "opencv_python_headless-4.10.0.84.dist-info",
            "torch",
        ] {
            let dir = root
                .path()
                .join("opt/venv/lib/python3.12/site-packages")
                .join(name);
            fs::create_dir_all(dir).expect("a folder");
        }
        let site = "/opt/venv/lib/python3.12/site-packages";
        let maps = maps_of(&[
            "/usr/bin/python3.12",
            &format!("{site}/torch/lib/libtorch_cpu.so"),
            &format!("{site}/torch/lib/libtorch_python.so"),
            &format!("{site}/nvidia/cuda_runtime/lib/libcudart.so.12"),
            &format!("{site}/nvidia/nccl/lib/libnccl.so.2"),
            &format!("{site}/numpy/_core/_multiarray_umath.cpython-312-x86_64-linux-gnu.so"),
            &format!("{site}/numpy.libs/libopenblas.so"),
            &format!("{site}/cv2/cv2.abi3.so"),
            &format!("{site}/PIL/_imaging.cpython-312-x86_64-linux-gnu.so"),
            "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
            "/usr/lib/x86_64-linux-gnu/libc.so.6",
            "/usr/lib/x86_64-linux-gnu/libtcmalloc_minimal.so.4.5.9",
        ]);
        assert_eq!(
            FrameworkFacts::read_from(&maps, root.path()),
            facts(
                Some("3.12"),
                &[
                    ("cuda-runtime", Some("12.1.105")),
                    ("glibc", None),
                    ("libcuda", Some("550.54.15")),
                    ("nccl", Some("2.20.5")),
                    ("numpy", Some("2.1.0")),
                    ("opencv", Some("4.10.0.84")),
                    ("pillow", None),
                    ("tcmalloc", None),
                    ("torch", Some("2.4.0+cu121")),
                ]
            )
        );
    }

    #[test]
    fn without_packages_the_file_names_tell_what_they_can() {
        let nowhere = Path::new("/nonexistent");
        let cases = [
            (maps_of(&[]), facts(None, &[])),
            (
                maps_of(&[
                    "/usr/lib/x86_64-linux-gnu/libtorch_cpu.so.1.13",
                    "/usr/lib/libpython3.11.so.1.0",
                    "/lib/x86_64-linux-gnu/libc-2.31.so",
                ]),
                facts(
                    Some("3.11"),
                    &[("glibc", Some("2.31")), ("torch", Some("1.13"))],
                ),
            ),
            (
                maps_of(&[
                    "/lib/ld-musl-x86_64.so.1",
                    "/data/numpy/a.so",
                    "/data/site-packages/numpy/x.npy",
                ]),
                facts(None, &[("musl", None)]),
            ),
        ];
        for (maps, expected) in cases {
            assert_eq!(
                FrameworkFacts::read_from(&maps, nowhere),
                expected,
                "{maps}"
            );
        }
    }

    #[test]
    fn our_own_libraries_can_be_read() {
        let facts = FrameworkFacts::read(std::process::id()).expect("our own");
        assert_eq!(facts.python, None);
        assert!(
            facts.has("glibc") || facts.has("musl") || facts.libraries.is_empty(),
            "{facts:?}"
        );
        let bytes = postcard::to_stdvec(&facts).expect("encodes");
        assert_eq!(
            postcard::from_bytes::<FrameworkFacts>(&bytes).expect("decodes"),
            facts
        );
        assert!(
            FrameworkFacts::read(u32::MAX)
                .expect_err("no such process")
                .is_gone()
        );
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_a_table_of_mappings(
            maps in "([0-9a-f]|[ -]|/(site-packages|torch|numpy|lib(c|torch|cudart)(\\.so|[.-][0-9]){0,4})|é|\n){0,80}",
            file in "(lib|python|\\.so|[.-]|[0-9]|é){0,12}",
        ) {
            FrameworkFacts::read_from(&maps, Path::new("/nonexistent"));
            split_library(&file);
            python_version(&file);
            decode_distribution(&(file + ".dist-info"));
        }
    }
}
