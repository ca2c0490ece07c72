//! What the workers are that make batches, where that changes what there is to set.

use super::Look;

/// Stacks of a worker that tell, at least. One that works deep in a library may show no more than that library's own functions.
const MIN_STACKS: usize = 20;
/// PyTorch's workers run in this.
const DATA_LOADER: &str = "/torch/utils/data/";

/// Whether the workers are processes of the job's own making: none of what their Python was seen in is of PyTorch's loader, so that there is no
/// `num_workers` to set.
pub(super) fn are_of_its_own(look: &Look) -> bool {
    let python = &look.session.python;
    let mut seen = 0;
    for pid in &look.trainer.cast.makers {
        for (_, stack) in look.facts.python_samples(*pid) {
            let functions = python.stacks.get(stack).into_iter().flatten();
            let mut files = functions.filter_map(|number| python.functions.get(number));
            if files.any(|function| function.file.contains(DATA_LOADER)) {
                return false;
            }
            seen += 1;
        }
    }
    seen >= MIN_STACKS
}
