"""Files of a folder, read whole by workers, then decoded. What is slow about the files is up to where they lie."""

import os

from kit import log, loop, work
from kit.job import here


class Files(loop.Items):
    def __init__(self, job):
        self.paths = sorted(entry.path for entry in os.scandir(job.data))
        super().__init__(len(self.paths))
        self.decode = work.Inflate(job.decode_ms)

    def make(self, index):
        with log.span("open"):
            fd = os.open(self.paths[index], os.O_RDONLY)
        with log.span("read"):
            size = os.fstat(fd).st_size
            while size > 0 and (data := os.read(fd, size)):
                size -= len(data)
            os.close(fd)
        with log.span("decode"):
            self.decode()


def main():
    job = here()
    compute = work.Torch(job.compute_ms)
    batches = loop.loader(Files(job), job.batch, job.workers, shuffle=True, multiprocessing_context=job.start)
    loop.forever(job, batches, lambda batch: compute())


def cost(spans):
    """The worker sleeps in open and read: that is what goes when the files are quick. Its CPU time there stays."""
    return spans.behind_waits("open", "read", part="blocked")


# Sleeping takes as long on a CPU of any speed.
fixed = cost


if __name__ == "__main__":
    main()
