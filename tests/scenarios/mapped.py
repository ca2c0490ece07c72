"""Rows of one big array that is mapped into memory, at random places."""

import mmap

import numpy as np

from kit import log, loop, work
from kit.job import here


class Rows(loop.Items):
    def __init__(self, job):
        with open(job.data, "rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        # As programs do that read at random places: else each fault reads megabytes around it.
        mapping.madvise(mmap.MADV_RANDOM)
        self.rows = np.frombuffer(mapping, np.float32).reshape(-1, int(job.row_kb) * 256)
        super().__init__(len(self.rows))
        self.decode = work.Numpy(job.decode_ms)

    def make(self, index):
        with log.span("read"):
            self.rows[index].sum()
        with log.span("decode"):
            self.decode()


def main():
    job = here()
    compute = work.Torch(job.compute_ms)
    batches = loop.loader(Rows(job), job.batch, job.workers, shuffle=True)
    loop.forever(job, batches, lambda batch: compute())


def cost(spans):
    """The worker sleeps in page faults while it adds up a row; the adding itself is CPU time."""
    return spans.behind_waits("read", part="blocked")


# Sleeping takes as long on a CPU of any speed.
fixed = cost


if __name__ == "__main__":
    main()
