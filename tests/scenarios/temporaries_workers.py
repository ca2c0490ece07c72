"""Big buffers in the workers, mapped and unmapped for every item, in pages of the ordinary size."""

import mmap

import numpy as np

from kit import log, loop, work
from kit.job import here


class Volumes(loop.Items):
    def __init__(self, job):
        super().__init__(100_000)
        self.fault = job.fault
        self.size = int(job.array_mb * 262144)
        self.arrays = job.arrays
        self.decode = work.Inflate(job.decode_ms)
        self.kept = np.zeros(self.size, np.float32)

    def make(self, index):
        for _ in range(self.arrays):
            if self.fault:
                with log.span("alloc"):
                    memory = mmap.mmap(-1, self.size * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                    np.frombuffer(memory, np.float32)[::1024] = 1
                    memory.close()
            else:
                self.kept[::1024] = 1
        with log.span("decode"):
            self.decode()


def main():
    job = here()
    compute = work.Torch(job.compute_ms)
    batches = loop.loader(Volumes(job), job.batch, job.workers, shuffle=True)
    loop.forever(job, batches, lambda batch: compute())


def cost(spans):
    """CPU time of mapping, page faults and unmapping: in the worker that the trainer waits for, and while the model wants that CPU.

    The workers are taken to have had all of that, such work its part of what they had.
    """
    part = spans.own("alloc", part="cpu") / max(spans.own("alloc", "decode", part="cpu"), 1e-9)
    return spans.behind_waits("alloc", part="cpu") + part * spans.own("compute", part="wanting")


if __name__ == "__main__":
    main()
