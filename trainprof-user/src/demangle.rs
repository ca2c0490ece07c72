//! Names of functions as their programmers wrote them.

/// A symbol's name without the mangling of C++ (Itanium C++ ABI) or Rust; any other name as it is.
pub fn demangled(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return format!("{rust:#}");
    }
    if !name.starts_with("_Z") {
        return name.to_owned();
    }
    cpp_demangle::Symbol::new(name)
        .ok()
        .and_then(|symbol| symbol.demangle().ok())
        .unwrap_or_else(|| name.to_owned())
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
}
