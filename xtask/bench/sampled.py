"""How much of a watched job's CPU time is in the probes, by sampling the whole host: sampled.py TRAINPROF jpeg|allocations [SECONDS]

Needs root, perf(1), and what `cargo xtask bench` made (target/bench/pictures). Tells small costs where runs differ by more. Code that
runs with interrupts off is sampled when they are on again: programs at switches and wake-ups are counted low.
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
# The programs, what calls them, and what they call.
OURS = re.compile(
    "bpf|htab_|ringbuf|syscall_trace_enter|syscall_exit_work|copy_from_kernel_nofault|rcu_read_unlock_trace"
    "|trace_run|perf_trace|perf_event|perf_swevent|perf_output|uprobe|int3|handle_swbp|ftrace"
)


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
            record = ["perf", "record", "-q", "-e", "cpu-clock", "-F", "5000", "-a", "-o", data.name]
            subprocess.run([*record, "--", "sleep", str(seconds)], check=True)
            script = ["perf", "script", "-i", data.name, "-F", "comm,ip,sym"]
            lines = subprocess.run(script, check=True, capture_output=True, text=True).stdout
        watching.wait()
        with open(f"/proc/{running.pid}/comm") as file:
            name = file.read().strip()
    finally:
        running.kill()
    counts = collections.Counter()
    for line in lines.splitlines():
        who = line.split(None, 1)[0]
        counts["job" if who == name else who] += 1
        if who == name and OURS.search(line):
            counts["probes"] += 1
    own = sum(counts[who] for who in ("trainprof", "stacks", "symbols", "python"))
    share = counts["probes"] / max(counts["job"] - counts["probes"], 1)
    print(f"in probes: {100 * share:.2f} % of the job's CPU time ({counts['probes']} of {counts['job']} samples)")
    print(f"trainprof itself: {100 * own / seconds / 5000:.2f} % of a core")


main()
