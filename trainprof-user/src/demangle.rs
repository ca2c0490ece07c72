//! Names of functions as their programmers wrote them.

use std::fmt;

/// A name of this many bytes is of no use to anybody. A mangled one of some hundred may stand for any number of them, since it may repeat
/// parts of itself, and these parts of themselves.
const LONGEST: usize = 64 << 10;

/// Text that may not grow beyond [`LONGEST`].
struct Limited(String);

impl fmt::Write for Limited {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        if self.0.len() + more.len() > LONGEST {
            return Err(fmt::Error);
        }
        self.0.push_str(more);
        Ok(())
    }
}

/// A symbol's name without the mangling of C++ (Itanium C++ ABI) or Rust; any other name as it is.
pub fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if !name.starts_with("_Z") {
        return name.to_owned();
    }
    let mut read = Limited(String::new());
    let options = cpp_demangle::DemangleOptions::default();
    match cpp_demangle::Symbol::new(name) {
        Ok(symbol) if symbol.structured_demangle(&mut read, &options).is_ok() => read.0,
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cpp_and_rust_are_read_and_others_kept() {
        for (name, read) in [
            ("malloc", "malloc"),
            ("_Zno", "_Zno"),
            ("_Znwm", "operator new(unsigned long)"),
            (
                "_ZN2at6native5emptyEN3c108ArrayRefIlEE",
                "at::native::empty(c10::ArrayRef<long>)",
            ),
            ("_RNvC6_123foo3bar", "123foo::bar"),
            ("_ZN4core3fmt5write17h0123456789abcdefE", "core::fmt::write"),
        ] {
            assert_eq!(demangled(name), read);
        }
    }

    #[test]
    fn a_name_that_stands_for_a_very_long_one_stays_as_it_is() {
        let long = |bytes: usize| format!("_Z{bytes}{}v", "a".repeat(bytes));
        assert_eq!(demangled(&long(1_000)), format!("{}()", "a".repeat(1_000)));
        let longer = long(LONGEST);
        assert_eq!(demangled(&longer), longer);
    }
}
