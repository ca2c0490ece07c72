//! Harness of the tests that need a real kernel.
