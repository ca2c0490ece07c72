//! Threads of the kernel that send and receive packets on behalf of others (`ksoftirqd/N`, kernel/softirq.c): what does not end soon in
//! the context of whoever sends is left to them. While they do that for the job, having the CPU is no contention but part of its exchange.

use std::collections::BTreeSet;

use crate::{
    analysis::{cpus::kernel_threads, facts::Facts},
    record::fact::SocketFact,
    session::Session,
};

/// How the kernel names them.
const NAME: &str = "ksoftirqd/";

/// Bytes that the job moves through sockets for each nanosecond in which it waits for such a thread, from which on these are its own: a
/// packet of 1500 bytes takes some microseconds, and on one host packets are larger.
const OWN_BYTES_PER_NS: f64 = 0.1;

const FAMILIES: [&str; 2] = ["tcp", "udp"];

/// Those whose work is the job's own packets.
pub fn own_packets(facts: &Facts) -> BTreeSet<u32> {
    let session = facts.session;
    let kernels = kernel_threads(session);
    let mut found: BTreeSet<u32> = session
        .outsiders
        .iter()
        .filter(|(tid, (_, name))| {
            kernels.contains(tid) && name.as_ref().is_some_and(|name| name.starts_with(NAME))
        })
        .map(|(tid, _)| *tid)
        .collect();
    // Sockets of other families have no packets. Those that are polled are not known.
    let sockets = &session.host.sockets;
    let has_packets = |socket: &SocketFact| FAMILIES.contains(&socket.family.as_str());
    if found.is_empty() || !sockets.is_empty() && !sockets.values().any(has_packets) {
        return BTreeSet::new();
    }
    let items = facts.waiting_threads().flat_map(|(_, items)| items);
    let behind = items.filter(|item| found.contains(&item.ran_before));
    let waited: u64 = behind.map(|item| item.to - item.woken).sum();
    let waited = waited as f64 / facts.walkable_ns().max(1) as f64;
    let moved = moved(session) as f64 / (session.duration_s() * 1e9).max(1.0);
    if moved < OWN_BYTES_PER_NS * waited {
        found.clear();
    }
    found
}

/// Bytes that the job sent and received through sockets.
fn moved(session: &Session) -> u64 {
    let threads = session.threads.values();
    threads
        .map(|thread| thread.activity.socket_read_bytes + thread.activity.socket_write_bytes)
        .sum()
}
