//! The walk and its edge cases, told as small stories: who ran, who waited for whom. Times in ms.

mod allocation;
mod around_calls;
mod brief;
mod children;
mod clocks;
mod company;
mod confidence;
mod devices;
mod edge_cases;
mod epochs;
pub(crate) mod gpu_unseen;
mod locks;
mod memory;
mod on_gpu;
mod passes;
mod pieces;
mod python;
mod ranks;
mod rules;
mod slack;
mod state;
mod stories;
mod tails;
mod tale;
mod throttled;
mod unclear;
mod verdicts;
