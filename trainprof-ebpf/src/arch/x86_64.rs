//! x86-64's own interrupt vectors (arch/x86/include/asm/trace/irq_vectors.h): the places of `trainprof_common::arch::HANDLERS`.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};

use crate::irq::{handler, hard};

handler!(call_function_single_entry, call_function_single_exit, hard);
handler!(irq_work_entry, irq_work_exit, hard);
