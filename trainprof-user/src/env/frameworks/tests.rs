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
        let expected =
            expected.map(|(stem, version): (_, Option<&str>)| (stem, version.map(str::to_owned)));
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
