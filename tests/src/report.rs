//! Looks into a JSON report, with messages that name what is missing.

use serde_json::Value;

#[derive(Clone, Debug)]
pub struct Report(pub Value);

impl Report {
    pub fn parse(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_else(|error| panic!("report: {error}:\n{text}")))
    }

    /// A member by JSON pointer (RFC 6901).
    pub fn at(&self, pointer: &str) -> &Value {
        at(&self.0, pointer)
    }

    pub fn u64(&self, pointer: &str) -> u64 {
        u64_at(&self.0, pointer)
    }

    pub fn f64(&self, pointer: &str) -> f64 {
        f64_at(&self.0, pointer)
    }

    pub fn rows(&self, pointer: &str) -> &[Value] {
        self.at(pointer)
            .as_array()
            .map_or_else(|| panic!("{pointer} is no list"), Vec::as_slice)
    }

    pub fn lost(&self) -> u64 {
        self.u64("/coverage/lost")
    }

    /// The row of `/io/top` of a directory.
    pub fn directory(&self, path: &str) -> Option<&Value> {
        self.rows("/io/top")
            .iter()
            .find(|row| row["path"].as_str() == Some(path))
    }

    /// The row of a thread.
    pub fn thread(&self, tid: u64) -> Option<&Value> {
        self.rows("/threads")
            .iter()
            .find(|row| row["tid"].as_u64() == Some(tid))
    }

    /// The row of a process.
    pub fn process(&self, pid: u64) -> Option<&Value> {
        self.rows("/job/processes")
            .iter()
            .find(|row| row["pid"].as_u64() == Some(pid))
    }
}

pub fn at<'a>(value: &'a Value, pointer: &str) -> &'a Value {
    value.pointer(pointer).unwrap_or_else(|| {
        // The deepest part that is there says most about what is not.
        let mut known = pointer;
        let found = loop {
            match known.rfind('/') {
                Some(cut) => known = &known[..cut],
                None => break value,
            }
            if let Some(found) = value.pointer(known) {
                break found;
            }
        };
        let shown: String = found.to_string().chars().take(600).collect();
        panic!("the report has no {pointer}; {known:?} is {shown}")
    })
}

pub fn u64_at(value: &Value, pointer: &str) -> u64 {
    let found = at(value, pointer);
    found
        .as_u64()
        .unwrap_or_else(|| panic!("{pointer} is {found}, no whole number"))
}

pub fn f64_at(value: &Value, pointer: &str) -> f64 {
    let found = at(value, pointer);
    found
        .as_f64()
        .unwrap_or_else(|| panic!("{pointer} is {found}, no number"))
}
