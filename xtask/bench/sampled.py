"""How much of a watched job's CPU time is in the probes, by sampling the whole host: sampled.py TRAINPROF jpeg|allocations [SECONDS]

Needs root, perf(1), and what `cargo xtask bench` made (target/bench/pictures). Tells small costs where runs differ by more. Code that
runs with interrupts off is sampled when they are on again: programs at switches and wake-ups are counted low. What interrupts by
trainprof's clocks and the kernel's counting of page faults take is not seen at all: `cargo xtask bench turns` has it. Threads that spin in
sched_yield(2) while they have nothing to do (OpenBLAS' and OpenMP's, for 0.1 s after each product) make most of the system calls of
such a job and lose nothing by dearer ones: they are counted apart.
"""

import collections
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PICTURES = os.path.join(HERE, "../../target/bench/pictures")
JOBS = {"jpeg": ["job.py", "-", PICTURES, "10000"], "allocations": ["augment.py", "-", "10000000"]}
# The programs, what calls them, and what they call; not the kernel's own security hook, which is always there.
OURS = re.compile(
    r"^(bpf_(?!lsm_)|__bpf_|___bpf_|__htab_|htab_|bpf_ringbuf|__bpf_ringbuf|syscall_trace_enter|syscall_exit_work"
    r"|copy_from_kernel_nofault|rcu_read_unlock_trace|perf_trace|perf_swevent|perf_output|uprobe|int3|handle_swbp|ftrace)"
)
OWN_THREADS = ("stacks", "symbols", "python")


def samples(data):
    """Command, function and callers of each sample."""
    script = ["perf", "script", "-i", data, "-F", "comm,tid,ip,sym"]
    lines = subprocess.Popen(script, stdout=subprocess.PIPE, text=True)
    who, chain = None, []
    for line in lines.stdout:
        if line.isspace():
            if who and chain:
                yield who, chain
            who, chain = None, []
        elif who is None:
            who = line.split(None, 1)[0]
        else:
            chain.append(line.split(None, 1)[-1].strip())
    if lines.wait() != 0:
        sys.exit("perf script failed")


def main():
    trainprof, job = sys.argv[1], JOBS[sys.argv[2]]
    seconds = float(sys.argv[3]) if len(sys.argv) > 3 else 20.0
    command = [sys.executable, os.path.join(HERE, job[0]), *job[1:]]
    running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        time.sleep(1)
        running.stdin.write(b"go\n")
        running.stdin.flush()
        time.sleep(5)
        watch = [trainprof, "attach", str(running.pid), "-d", f"{seconds + 6}s", "-q"]
        watching = subprocess.Popen(watch, stderr=subprocess.DEVNULL)
        time.sleep(3)
        with tempfile.NamedTemporaryFile() as data:
            record = ["perf", "record", "-q", "-g", "-e", "cpu-clock", "-F", "5000", "-a", "-o", data.name]
            subprocess.run([*record, "--", "sleep", str(seconds)], check=True)
            with open(f"/proc/{running.pid}/comm") as file:
                name = file.read().strip()
            counts = count(samples(data.name), name, os.path.basename(trainprof))
        watching.wait()
    finally:
        running.kill()
    works = counts["job"] - counts["spins"]
    probes = counts["probes"] + counts["probes of spinners"]
    print(f"in probes: {100 * counts['probes'] / works:.2f} % of the CPU time in which the job does anything ({works} samples)")
    print(f"with threads that spin in sched_yield: {100 * probes / counts['job']:.2f} % of all ({counts['job']} samples)")
    print(f"trainprof itself: {100 * counts['own'] / seconds / 5000:.2f} % of a core")


def count(samples, job, own):
    counts = collections.Counter()
    for who, chain in samples:
        if who == own[:15] or who in OWN_THREADS:
            counts["own"] += 1
        elif who == job:
            spins = any("sched_yield" in function for function in chain)
            probe = OURS.search(chain[0]) is not None
            counts["job"] += 1
            counts["spins"] += spins
            counts["probes of spinners" if spins else "probes"] += probe
    return counts


main()
