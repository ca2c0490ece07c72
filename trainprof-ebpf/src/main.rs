//! trainprof's kernel probes.
//!
//! They record what followed threads do and know nothing of what is slow or bad. One file per probe
//! family; every map is in [`maps`]; [`emit`] is the one place that sends events and counts loss.
#![no_std]
#![no_main]

mod account;
mod alloc;
mod arch;
mod cache;
mod cpu;
mod emit;
mod fault;
mod files;
mod fileset;
mod follow;
mod gpu;
mod irq;
mod kernel;
mod maps;
mod object;
mod python;
mod sample;
mod sched;
mod stack;
mod touch;
mod uring;

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo) -> ! {
    // The verifier rejects an endless loop, and with it any program that could reach a panic.
    loop {}
}

#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 4] = *b"GPL\0";

const SOURCE: &[u8] = concat!(
    "TRAINPROF-EBPF-SOURCE-HASH:",
    env!("TRAINPROF_EBPF_SOURCE_HASH"),
    "\0"
)
.as_bytes();
/// Which sources this object was built from: trainprof-user/build.rs refuses an object that is older.
#[used]
#[unsafe(no_mangle)]
#[unsafe(link_section = "trainprof_source")]
static TRAINPROF_SOURCE: [u8; SOURCE.len()] = *SOURCE.first_chunk().unwrap();
