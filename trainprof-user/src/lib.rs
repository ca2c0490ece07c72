//! trainprof
