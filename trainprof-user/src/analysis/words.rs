//! How numbers and things are said.

use std::collections::{BTreeMap, BTreeSet};

use crate::{demangle::demangled, session::Session};

/// A share as a whole percentage.
pub fn percent(share: f64) -> String {
    // Of two numbers that hardly differ the difference may be just below zero.
    format!("{} %", (share * 100.0).round() + 0.0)
}

/// Bytes with a unit.
pub fn bytes(n: f64) -> String {
    const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
    let mut n = n;
    let mut unit = 0;
    while n >= 1000.0 && unit < UNITS.len() - 1 {
        n /= 1000.0;
        unit += 1;
    }
    if unit == 0 || n >= 100.0 {
        format!("{n:.0} {}", UNITS[unit])
    } else {
        format!("{n:.1} {}", UNITS[unit])
    }
}

/// A length of time with a unit.
pub fn time(seconds: f64) -> String {
    if seconds < 0.001 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds < 0.009_95 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 120.0 {
        format!("{seconds:.1} s")
    } else if seconds < 7200.0 {
        format!("{:.0} min", seconds / 60.0)
    } else {
        format!("{:.1} h", seconds / 3600.0)
    }
}

/// A speed-up factor.
pub fn factor(bound: f64) -> String {
    if bound.is_finite() && bound < 1.95 {
        format!("{bound:.2}x")
    } else if bound.is_finite() && bound < 100.0 {
        format!("{bound:.1}x")
    } else {
        "100x or more".to_owned()
    }
}

/// A function as its programmer wrote it, without its arguments, what stands in for types and what it returns: they make names of C++
/// and Rust longer than a line. Code that was written inside another function (a lambda) has the name of that one, also where it stands
/// in for a type: what calls it is the same for many.
pub fn function(name: &str) -> String {
    let name = demangled(name);
    let named = around_lambda(&name).unwrap_or(&name);
    let mut out = String::new();
    let mut depth = 0u32;
    for c in named.chars() {
        match c {
            // A name may begin with the type that it belongs to.
            '<' if out.is_empty() => {}
            '<' => depth += 1,
            '>' => depth = depth.saturating_sub(1),
            '(' if depth == 0 && !out.is_empty() && !out.ends_with("::") && !out.ends_with(' ') => {
                break;
            }
            c if depth == 0 => out.push(c),
            _ => {}
        }
    }
    let out = without_type(out.trim());
    if out.is_empty() { name } else { out.to_owned() }
}

/// Up to the outermost function around a lambda, from where its own name begins; `None`: there is no lambda.
fn around_lambda(name: &str) -> Option<&str> {
    let end = name.find("::{lambda(").or_else(|| name.find("::'lambda"))?;
    // Back over its arguments to what lies around the whole: a list of types, or another one's arguments.
    let mut depth = 0i32;
    let begin = name[..end].char_indices().rev().find(|(_, c)| {
        match c {
            ')' | '>' => depth += 1,
            '(' | '<' => depth -= 1,
            _ => {}
        }
        depth < 0 || (depth == 0 && *c == ',')
    });
    let begin = begin.map_or(0, |(at, _)| at + 1);
    Some(name[begin..end].trim_start())
}

/// A function's name without the type of what it returns, which names of templates begin with.
fn without_type(name: &str) -> &str {
    if name.contains("operator") || name.contains(" as ") {
        return name;
    }
    let mut depth = 0u32;
    let last = name.char_indices().rev().find(|(_, c)| {
        match c {
            ')' => depth += 1,
            '(' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && *c == ' '
    });
    last.map_or(name, |(at, _)| &name[at + 1..])
}

/// A directory with its file system, for a sentence.
pub fn place(session: &Session, fileset: u32) -> Option<String> {
    let fact = session.filesets.get(&fileset)?;
    let directory = fact.directory.clone()?;
    Some(match &fact.fs_type {
        Some(fs_type) => format!("{directory} ({fs_type})"),
        None => directory,
    })
}

/// Directories are told one by one up to this number, then by the one that they lie in.
const DIRECTORIES: usize = 3;

/// The directories of these files, for a sentence. A data set often has one for each class.
pub fn places(session: &Session, filesets: impl Iterator<Item = u32>) -> Vec<String> {
    let mut out = Vec::new();
    let mut told = BTreeSet::new();
    let mut directories = BTreeMap::<Option<&str>, BTreeSet<&str>>::new();
    for fileset in filesets {
        if let Some(place) = place(session, fileset)
            && told.insert(place.clone())
        {
            out.push(place);
        }
        if let Some(fact) = session.filesets.get(&fileset)
            && let Some(directory) = &fact.directory
        {
            let same = directories.entry(fact.fs_type.as_deref()).or_default();
            same.insert(directory);
        }
    }
    if out.len() <= DIRECTORIES {
        return out;
    }
    let gathered = directories.into_iter().map(|(fs_type, directories)| {
        let around = parent(&directories)?;
        let fs_type = fs_type.map_or_else(String::new, |name| format!("{name}, "));
        let count = directories.len();
        Some(format!("{around} ({fs_type}{count} directories)"))
    });
    gathered.collect::<Option<_>>().unwrap_or(out)
}

/// The directory that all of these lie in, or one of them is; `None` where that is the root or just below it.
fn parent(directories: &BTreeSet<&str>) -> Option<String> {
    let mut all = directories.iter().map(|path| path.split('/'));
    let mut common: Vec<&str> = all.next()?.collect();
    for path in all {
        let same = common.iter().zip(path).take_while(|(a, b)| **a == *b);
        common.truncate(same.count());
    }
    // The first part of an absolute path is empty.
    (common.len() > 2).then(|| common.join("/"))
}

/// A list in a sentence, at most three.
pub fn list(items: &[String]) -> String {
    match items {
        [] => String::new(),
        [one] => one.clone(),
        [first, second] => format!("{first} and {second}"),
        [first, second, rest @ ..] if rest.len() == 1 => {
            format!("{first}, {second} and {}", rest[0])
        }
        [first, second, rest @ ..] => format!("{first}, {second} and {} more", rest.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_lose_their_arguments() {
        for (name, short) in [
            ("step", "step"),
            (
                "at::TensorIteratorBase::serial_for_each(c10::function_ref<void (char**, long)>, at::Range) const",
                "at::TensorIteratorBase::serial_for_each",
            ),
            (
                "std::vector<int>::push_back(int&&)",
                "std::vector::push_back",
            ),
            (
                "(anonymous namespace)::run(int)",
                "(anonymous namespace)::run",
            ),
            (
                "a::(anonymous namespace)::run(int)",
                "a::(anonymous namespace)::run",
            ),
            ("operator new(unsigned long)", "operator new"),
            ("<alloc::vec::Vec<T>>::push", "alloc::vec::Vec::push"),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            (
                "_ZNSt6vectorIiSaIiEE9push_backEOi",
                "std::vector::push_back",
            ),
            (
                "void c10::function_ref<void (char**, long const*, long, long)>::callback_fn<F>(long, char**)",
                "c10::function_ref::callback_fn",
            ),
            ("unsigned long count(int)", "count"),
            (
                "std::enable_if<true, int>::type (anonymous namespace)::run<int>(int)",
                "(anonymous namespace)::run",
            ),
            ("a::B::operator bool() const", "a::B::operator bool"),
            (
                "at::native::copy(at::Tensor&, std::pair<int, long>)::{lambda()#3}::operator()() const::{lambda(float)#1}::operator()(float) const",
                "at::native::copy",
            ),
            (
                "void f<std::function<void (int)>, a::sort<int>(a::B const&)::{lambda(int)#1}>(int)",
                "a::sort",
            ),
            // Of libtorch_cpu.so, 2.15.
            (
                "_ZN3c1012function_refIFvPPcPKlllEE11callback_fnIN2at6native4AVX216VectorizedLoop2dIZZZNS9_12_GLOBAL__N_116threshold_kernelERNS8_18TensorIteratorBaseERKNS_6ScalarESH_ENKUlvE0_clEvENKUlvE0_clEvEUlaaE_ZZZNSC_16threshold_kernelESE_SH_SH_ENKSI_clEvENKSJ_clEvEUlNS8_3vec4AVX210VectorizedIaEESO_E_EEEEvlS2_S4_ll",
                "at::native::(anonymous namespace)::threshold_kernel",
            ),
        ] {
            assert_eq!(function(name), short);
        }
    }

    #[test]
    fn many_directories_are_told_by_the_one_around_them() {
        let parent = |all: &[&str]| parent(&all.iter().copied().collect());
        assert_eq!(
            parent(&["/data/train/cat", "/data/train/dog", "/data/train/dogs"]).as_deref(),
            Some("/data/train")
        );
        assert_eq!(
            parent(&["/data/a", "/data/a/b"]).as_deref(),
            Some("/data/a")
        );
        assert_eq!(parent(&["/data/a", "/mnt/b"]), None);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(percent(0.614), "61 %");
        assert_eq!(bytes(98_000.0), "98.0 KB");
        assert_eq!(bytes(512.0), "512 B");
        assert_eq!(bytes(1.25e9), "1.2 GB");
        assert_eq!(time(0.000_4), "400 µs");
        assert_eq!(time(0.004_2), "4.2 ms");
        assert_eq!(time(0.412), "412 ms");
        assert_eq!(time(600.0), "10 min");
        assert_eq!(factor(2.41), "2.4x");
        assert_eq!(factor(f64::INFINITY), "100x or more");
        let names: Vec<String> = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        assert_eq!(list(&names[..2]), "a and b");
        assert_eq!(list(&names[..3]), "a, b and c");
        assert_eq!(list(&names), "a, b and 2 more");
    }
}
