"""Runs a job with its cause until FOLDER/NAME.stop exists, then without it, and writes the truth to FOLDER/NAME.truth.json.

A job is job(fixed), a generator of which one turn is a step. In between, PyTorch's profiler (CUPTI) counts how long kernels and
copies run in a step. Usage: jobs.py FOLDER NAME
"""
import json
import os
import sys
import time

FOLDER, NAME = sys.argv[1], sys.argv[2]


def path(ending):
    return os.path.join(FOLDER, NAME + ending)


def quantile_ms(seconds, q):
    seconds = sorted(seconds)
    return seconds[min(len(seconds) - 1, int(len(seconds) * q))] * 1e3


def lengths(ends):
    return [b - a for a, b in zip(ends, ends[1:])]


def busy(steps):
    """Milliseconds a step in which the GPU ran anything, and in which it copied."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        count, begun = 0, time.monotonic()
        while time.monotonic() - begun < 1.0 or count < 5:
            next(steps)
            count += 1
        torch.cuda.synchronize()
    events = sorted(
        (event.start_ns(), event.start_ns() + event.duration_ns(), event.name())
        for event in seen.profiler.kineto_results.events()
        if str(event.device_type()).endswith("CUDA")
    )
    ran = copied = last = 0
    for begin, end, name in events:
        if "Memcpy" in name:
            copied += end - begin
        begin = max(begin, last)
        if end > begin:
            ran += end - begin
            last = end
    return {"busy_ms_per_step": ran / 1e6 / count, "copy_ms_per_step": copied / 1e6 / count}


def main(job, fix=True, profiled=True):
    steps, begun, count = job(False), time.monotonic(), 0
    while count < 8 or time.monotonic() - begun < 3.0:
        next(steps)
        count += 1
    open(path(".ready"), "w").close()
    ends = []
    while not os.path.exists(path(".stop")):
        next(steps)
        ends.append(time.monotonic())
    took = lengths(ends)
    mean = 1e3 * sum(took) / len(took)
    truth = {
        "steps": len(took),
        "mean_ms": mean,
        "p50_ms": quantile_ms(took, 0.5),
        "p95_ms": quantile_ms(took, 0.95),
    }
    if profiled:
        truth.update(busy(steps))
    steps.close()
    if fix:
        steps, begun, count = job(True), time.monotonic(), 0
        while count < 8 or time.monotonic() - begun < 2.0:
            next(steps)
            count += 1
        ends = [time.monotonic()]
        while time.monotonic() - ends[0] < 5.0:
            next(steps)
            ends.append(time.monotonic())
        took = lengths(ends)
        truth["gain"] = mean / (1e3 * sum(took) / len(took))
    with open(path(".truth.json"), "w") as file:
        json.dump(truth, file)
    # Loaders' workers and other processes of the job need no farewell.
    os._exit(0)
