"""Load of `bench alloc`: augmentation in one process, small pictures by numpy and torch: augment.py TRUTH PICTURES

Crop, flip, brightness, contrast and normalisation, picture by picture, as a loader does them before it makes a batch; each
operation makes its result anew. A fixed amount of work; the gates are those of tests/workloads/wl.h, but that another `go`
has it done again. Where a library that counts allocations is loaded (count.c), what the work asked of the allocator is told as `allocations`.
"""

import ctypes
import json
import math
import os
import resource
import select
import sys
import time

import numpy
import torch

SIDE, CROP, BATCH = 104, 96, 32


def wait_line():
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.poll()
    return os.read(0, 64).startswith(b"go")


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def allocations():
    """What was allocated so far; None: nobody counts."""
    try:
        counted = ctypes.CDLL(None).allocations_counted
    except AttributeError:
        return None
    counted.restype = ctypes.c_uint64
    return counted()


def augment(picture, turn, mean, deviation):
    top, left = turn % (SIDE - CROP), turn // 3 % (SIDE - CROP)
    part = picture[:, top : top + CROP, left : left + CROP]
    pixels = torch.from_numpy(part.astype(numpy.float32))
    if turn % 2:
        pixels = pixels.flip(2)
    pixels = pixels * (0.8 + turn % 5 * 0.1)
    for channel in pixels.unbind(0):
        channel.sub_(channel.mean()).mul_(1.1)
    return ((pixels / 255 - mean) / deviation).clamp(-3, 3)


def main():
    out, pictures = sys.argv[1], int(sys.argv[2])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = numpy.random.default_rng(0).integers(0, 256, (512, 3, SIDE, SIDE), dtype=numpy.uint8)
    mean, deviation = torch.full((3, 1, 1), 0.5), torch.full((3, 1, 1), 0.25)
    for turn in range(64):
        augment(data[turn], turn, mean, deviation)
    os.write(1, b"ready %d\n" % os.getpid())
    line = b""
    while wait_line():
        began, cpu, allocated = time.monotonic(), cpu_seconds(), allocations()
        total = 0.0
        for start in range(0, pictures, BATCH):
            batch = [
                augment(data[turn % len(data)], turn, mean, deviation)
                for turn in range(start, start + BATCH)
            ]
            total += float(torch.stack(batch).sum())
        wall, cpu = time.monotonic() - began, cpu_seconds() - cpu
        units = -(-pictures // BATCH) * BATCH
        truth = {"pid": os.getpid(), "wall_s": wall, "cpu_s": cpu, "units": units}
        if allocated is not None:
            truth["allocations"] = allocations() - allocated
        assert math.isfinite(total)
        line = (json.dumps(truth) + "\n").encode()
        os.write(1, b"done " + line)
    os.write(1, line) if out == "-" else open(out, "wb").write(line)


if __name__ == "__main__":
    main()
