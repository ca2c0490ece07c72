"""Two ranks that add up their gradients in each step; one has more to do."""

import multiprocessing
import os

import torch
import torch.distributed as dist

from kit import log, work
from kit.job import here


def rank(job, number):
    if job.fault and number == job.late:
        more = job.more_ms
    else:
        more = 0
    compute = work.Torch(job.compute_ms)
    dist.init_process_group(
        "gloo", init_method="file://" + os.path.join(job.folder, "meeting"), rank=number, world_size=2
    )
    gradient = torch.rand(int(job.gradient_kb * 256))
    end = log.now()
    while True:
        used = log.cpu()
        compute(job.compute_ms + more)
        got = log.now()
        log.put("compute", end, got, log.cpu() - used, tag=number)
        dist.all_reduce(gradient)
        gradient /= 2
        done = log.now()
        # The tag tells the rank that the other one waits for.
        log.put("comm", got, done, tag=number)
        if number != job.late:
            log.put("turn", end, done)
            job.turn_done()
        end = done


def main():
    job = here()
    context = multiprocessing.get_context(job.start)
    ranks = [context.Process(target=rank, args=(job, number)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


def late(spans):
    """Process of the rank that waits least."""
    waits = {}
    for a, b, _, _, pid, _ in spans.of("comm"):
        waits[pid] = waits.get(pid, 0) + b - a
    return min(waits, key=waits.get), max(waits.values())


def cost(spans):
    """What the early rank spends in the collective, its own part of the exchange included."""
    return late(spans)[1]


def named(spans):
    return [late(spans)[0]]


if __name__ == "__main__":
    main()
