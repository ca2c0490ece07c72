//! Functions and stacks as records, each once for the whole watch.

use std::collections::HashMap;

use super::stack::Function;
use crate::record::{
    Record,
    fact::{PyFunctionFact, PyStackFact},
};

/// Different functions and stacks that are told apart; what comes later is left out.
const MAX_FUNCTIONS: usize = 65_536;
const MAX_STACKS: usize = 16_384;

/// The numbers given so far, and records of the newest.
#[derive(Default)]
pub struct Numbers {
    functions: HashMap<Function, u32>,
    stacks: HashMap<Vec<u32>, u32>,
    pub new: Vec<Record>,
}

impl Numbers {
    pub fn function(&mut self, function: Function) -> Option<u32> {
        if let Some(number) = self.functions.get(&function) {
            return Some(*number);
        }
        if self.functions.len() >= MAX_FUNCTIONS {
            return None;
        }
        let number = self.functions.len() as u32 + 1;
        let Function {
            file,
            name,
            line,
            generator,
        } = function.clone();
        self.new.push(Record::PyFunction(PyFunctionFact {
            number,
            file,
            name,
            line,
            generator,
        }));
        self.functions.insert(function, number);
        Some(number)
    }

    pub fn stack(&mut self, functions: Vec<u32>) -> Option<u32> {
        if let Some(number) = self.stacks.get(&functions) {
            return Some(*number);
        }
        if self.stacks.len() >= MAX_STACKS {
            return None;
        }
        let number = self.stacks.len() as u32 + 1;
        self.new.push(Record::PyStack(PyStackFact {
            number,
            functions: functions.clone(),
        }));
        self.stacks.insert(functions, number);
        Some(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_told_once() {
        let mut numbers = Numbers::default();
        let function = |line| Function {
            file: "a.py".into(),
            name: "f".into(),
            line,
            generator: false,
        };
        assert_eq!(numbers.function(function(1)), Some(1));
        assert_eq!(numbers.function(function(2)), Some(2));
        assert_eq!(numbers.function(function(1)), Some(1));
        assert_eq!(numbers.stack(vec![1, 2]), Some(1));
        assert_eq!(numbers.stack(vec![2, 1]), Some(2));
        assert_eq!(numbers.stack(vec![1, 2]), Some(1));
        assert_eq!(numbers.new.len(), 4);
    }
}
