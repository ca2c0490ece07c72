//! Tests that leave themselves out in the virtual machines, by name: one that is not in the list fails the run there, and so
//! does one of the list that ran after all.

use std::collections::BTreeSet;

/// One name a line.
const LIST: &str = include_str!("../../tests/left_out_in_vm.txt");

/// The name in a test's own `SKIP name: reason`.
pub fn name_in(line: &str) -> Option<&str> {
    let (name, _) = line.strip_prefix("SKIP ")?.split_once(':')?;
    Some(name)
}

/// What differs from the list, one sentence each; `whole`: every test ran, so that all of the list must be found.
pub fn differences(found: &BTreeSet<String>, whole: bool) -> Vec<String> {
    compare(LIST, found, whole)
}

fn compare(list: &str, found: &BTreeSet<String>, whole: bool) -> Vec<String> {
    let listed: BTreeSet<&str> = list.lines().filter(|line| !line.is_empty()).collect();
    let new = found
        .iter()
        .filter(|name| !listed.contains(name.as_str()))
        .map(|name| format!("{name} left itself out, and is not in tests/left_out_in_vm.txt"));
    let ran = listed
        .iter()
        .filter(|name| whole && !found.contains(**name))
        .map(|name| format!("{name} is in tests/left_out_in_vm.txt, and did not leave itself out"));
    new.chain(ran).collect()
}

#[cfg(test)]
mod tests {
    use super::{LIST, compare, name_in};
    use std::collections::BTreeSet;

    fn names(list: &[&str]) -> BTreeSet<String> {
        list.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn names_are_read() {
        assert_eq!(name_in("SKIP a_test: needs Python: 3"), Some("a_test"));
        assert_eq!(name_in("test a_test ... ok"), None);
    }

    #[test]
    fn who_is_new_and_who_ran_after_all_is_told() {
        let list = "a\nb\n";
        assert!(compare(list, &names(&["a", "b"]), true).is_empty());
        let new = compare(list, &names(&["a", "b", "c"]), true);
        assert!(
            new.len() == 1 && new[0].starts_with("c left itself out"),
            "{new:?}"
        );
        let ran = compare(list, &names(&["a"]), true);
        assert!(ran.len() == 1 && ran[0].starts_with("b is in"), "{ran:?}");
        // A part of the tests.
        assert!(compare(list, &names(&["a"]), false).is_empty());
    }

    #[test]
    fn the_list_is_sorted_and_has_nobody_twice() {
        assert!(LIST.lines().is_sorted_by(|a, b| a < b));
    }
}
