"""Workers that share one lock and hold it while they decode."""

import multiprocessing
from contextlib import nullcontext

from kit import log, loop, work
from kit.job import here


class Guarded(loop.Items):
    def __init__(self, job):
        super().__init__(100_000)
        self.decode = work.Inflate(job.decode_ms)
        self.lock = multiprocessing.Lock() if job.fault else nullcontext()

    def make(self, index):
        asked = log.now()
        with self.lock:
            log.put("lock", asked, log.now())
            with log.span("held"):
                self.decode()


def main():
    job = here()
    compute = work.Torch(job.compute_ms)
    batches = loop.loader(Guarded(job), job.batch, job.workers, shuffle=True)
    loop.forever(job, batches, lambda batch: compute())


def cost(spans):
    """The trainer waits, and at least one worker could decode now but for the lock.

    What it does itself to take a batch, and wanting a CPU for that, is no waiting for the lock.
    """
    return spans.waits_while(spans.of("lock"), part="blocked")


if __name__ == "__main__":
    main()
