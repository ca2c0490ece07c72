"""Two ranks that add up their gradients in each step; one has more to do. With `workers` each has a loader of its own.

They are started by this script, or by torchrun: then it is torchrun's agent that is attached to.
"""

import itertools
import multiprocessing
import os
import sys

import torch
import torch.distributed as dist

from kit import log, loop, work
from kit.job import here


class Pictures(loop.Items):
    def __init__(self, job):
        super().__init__(100_000)
        self.decode = work.Inflate(job.decode_ms)

    def make(self, index):
        with log.span("decode"):
            self.decode()


def batches(job):
    """Epoch after epoch; without workers there is nothing to load."""
    if not job.workers:
        yield from itertools.repeat(None)
    loader = loop.loader(Pictures(job), job.batch, job.workers, shuffle=True)
    while True:
        yield from loader


def rank(job, number):
    if job.fault and number == job.late:
        more = job.more_ms
    else:
        more = 0
    compute = work.Torch(job.compute_ms)
    if job.launch == "torchrun":
        dist.init_process_group("gloo")
    else:
        meeting = "file://" + os.path.join(job.folder, "meeting")
        dist.init_process_group("gloo", init_method=meeting, rank=number, world_size=2)
    gradient = torch.rand(int(job.gradient_kb * 256))
    end = log.now()
    for _ in batches(job):
        begin, used = log.now(), log.used()
        log.put("wait", end, begin)
        compute(job.compute_ms + more)
        got, used_got = log.now(), log.used()
        log.put("compute", begin, got, used_got - used, tag=number)
        dist.all_reduce(gradient)
        gradient /= 2
        done = log.now()
        # The tag tells the rank that the other one waits for.
        log.put("comm", got, done, log.used() - used_got, tag=number)
        if number != job.late:
            log.put("turn", end, done)
            job.turn_done()
        end = done


def main():
    job = here()
    if job.launch == "torchrun":
        if "RANK" in os.environ:
            rank(job, int(os.environ["RANK"]))
        # torchrun of PyTorch 1.13 under Python 3.11 cannot leave both streams alone: errors go by way of a file.
        streams = ["--redirects=2", "--tee=2", "--log_dir", os.path.join(job.folder, "errors")]
        # Not --standalone: its port is fixed, and a second job would meet the first one there.
        meeting = ["--rdzv_backend=c10d", "--rdzv_endpoint=localhost:0", "--nnodes=1"]
        run = ["-m", "torch.distributed.run", *meeting, "--nproc_per_node=2", *streams]
        os.execv(sys.executable, [sys.executable, *run, os.path.abspath(__file__)])
    context = multiprocessing.get_context(job.start)
    ranks = [context.Process(target=rank, args=(job, number)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()


def late(spans):
    """Process of the rank that waits least, and how long the other one does: asleep in the collective."""
    waits = {}
    for a, b, parts, _, pid, _ in spans.of("comm"):
        waits[pid] = waits.get(pid, 0) + (b - a) * parts.share("blocked")
    return min(waits, key=waits.get), max(waits.values())


def cost(spans):
    """What the early rank sleeps in the collective. Its own part of the exchange is work."""
    return late(spans)[1]


def named(spans):
    return [late(spans)[0]]


if __name__ == "__main__":
    main()
