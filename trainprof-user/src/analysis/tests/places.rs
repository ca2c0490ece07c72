//! By which function of Python a stack's time is told.

use super::{
    python::{SCRIPT, alone, times},
    stories::TRAINER,
};
use crate::analysis::{facts::Facts, python::Python};

#[test]
fn who_leaves_all_to_a_library_is_told_where_in_it() {
    let library = |file: &str| format!("/opt/env/lib/python3.12/site-packages/{file}");
    for script in ["<module>", "main"] {
        let mut tale = alone("unused", false);
        tale.function(1, SCRIPT, script)
            .function(5, &library("ultra/engine/model.py"), "Model.train")
            .function(6, &library("ultra/data/base.py"), "Images.__getitem__")
            .function(7, &library("ultra/nn/conv.py"), "Conv.forward")
            .function(8, &library("torchvision/folder.py"), "Folder.__getitem__");
        // Without workers: the library's loop draws from a loader, then it computes. The last is the script's own loader.
        tale.stack(1, &[6, 2, 5, 1], TRAINER, times(0, 2))
            .stack(2, &[3, 7, 3, 5, 1], TRAINER, times(2, 2))
            .stack(3, &[8, 2, 1], TRAINER, times(4, 1));
        let session = tale.session(8000.0);
        let facts = Facts::new(&session);
        let found = Python::new(&facts).places(&[TRAINER], None);
        let names: Vec<_> = found
            .iter()
            .map(|place| place.function.name.as_str())
            .collect();
        let told = ["Images.__getitem__", "Conv.forward", "Folder.__getitem__"];
        assert_eq!(names, told, "{script}");
    }
}

#[test]
fn a_call_through_wrappers_is_told_by_what_they_wrap() {
    let torch = |file: &str| format!("/opt/env/lib/python3.12/site-packages/torch/{file}");
    let mut tale = alone("unused", false);
    tale.function(
        5,
        &torch("optim/optimizer.py"),
        "Optimizer.hook.<locals>.wrapper",
    )
    .function(6, &torch("optim/adam.py"), "Adam.step")
    .function(7, &torch("optim/adam.py"), "adam")
    .function(8, &torch("nn/modules/linear.py"), "Linear.forward");
    // The last ends in a wrapper.
    tale.stack(1, &[7, 6, 5, 1], TRAINER, times(0, 2))
        .stack(2, &[8, 3, 3, 1], TRAINER, times(2, 2))
        .stack(3, &[3, 1], TRAINER, times(4, 1));
    let session = tale.session(8000.0);
    let facts = Facts::new(&session);
    let found = Python::new(&facts).computing(TRAINER);
    let names: Vec<_> = found
        .iter()
        .map(|place| place.function.name.as_str())
        .collect();
    assert_eq!(names, ["Adam.step", "Linear.forward", "Module._call_impl"]);
}
