"""Short epochs, each with workers of its own."""

from kit import log, loop, work
from kit.job import here


class Pictures(loop.Items):
    def __init__(self, job):
        super().__init__(job.epoch * job.batch)
        self.decode = work.Inflate(job.decode_ms)

    def make(self, index):
        with log.span("decode"):
            self.decode()


def main():
    job = here()
    compute = work.Torch(job.compute_ms)
    batches = loop.loader(
        Pictures(job), job.batch, job.workers, persistent_workers=not job.fault, multiprocessing_context=job.start
    )
    loop.forever(job, batches, lambda batch: compute())


def cost(spans):
    """The first wait of each epoch: ending the old workers, starting the new ones, their first batch.

    Other waits are short: the loader keeps up. Waits of a tenth of the longest and more are the first ones.
    """
    waits = [b - a for a, b, *_ in spans.of("wait")]
    return sum(wait for wait in waits if wait >= max(waits) / 10)


if __name__ == "__main__":
    main()
