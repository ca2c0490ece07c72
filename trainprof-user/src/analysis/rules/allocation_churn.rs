//! Allocator, page-fault and mmap/munmap work.

use trainprof_common::op::{Class, Op};

use super::{Answer, Look, look::rounded};
use crate::analysis::{Kind, running::split, words};

const KIND: Kind = Kind::AllocationChurn;

pub(super) fn rule(look: &Look) -> Answer {
    look.cause(KIND, |evidence| {
        let duration = look.session.duration_s().max(1e-9);
        let mut calls = 0;
        let mut bytes = 0;
        for (key, total) in &look.session.files.ops {
            let memory = matches!(
                Op::try_from(key.op),
                Ok(Op::Mmap | Op::Munmap | Op::Brk | Op::Madvise | Op::Mremap)
            );
            if memory && key.class == Class::Memory as u8 {
                calls += total.count;
                bytes += total.bytes;
            }
        }
        let doers = look.top(KIND, |share| Some(share.detail.tid));
        let split = doers
            .first()
            .map(|(tid, _)| split(look.facts, *tid, &[]))
            .unwrap_or_default();
        evidence.insert("memory_calls_per_s", rounded(calls as f64 / duration));
        evidence.insert("memory_call_bytes_per_s", rounded(bytes as f64 / duration));
        evidence.insert("allocator_share_of_cpu", rounded(split.allocator));
        evidence.insert("fault_share_of_cpu", rounded(split.fault));
        evidence.insert("memory_calls_share_of_cpu", rounded(split.memory_calls));
        let mapped = split.fault + split.memory_calls > split.allocator;
        let summary = format!(
            "{} in {}: {} of its CPU time in page faults, {} in mmap and munmap, {} in the allocator",
            if look.who(KIND) == "the trainer itself" { "the trainer's time goes" } else { "the producers' time goes" },
            if mapped { "taking memory from the kernel and giving it back" } else { "allocating and freeing" },
            words::percent(split.fault),
            words::percent(split.memory_calls),
            words::percent(split.allocator),
        );
        let advice = if mapped {
            format!(
                "reuse buffers, or keep freed memory in the process (MALLOC_MMAP_THRESHOLD_ and MALLOC_TRIM_THRESHOLD_ raised, or jemalloc); without this {}",
                look.effect(KIND)
            )
        } else {
            format!(
                "reuse buffers and make fewer temporaries, or use jemalloc or tcmalloc; without this {}",
                look.effect(KIND)
            )
        };
        (summary, advice)
    })
}
