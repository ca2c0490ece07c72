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

    Of other waits, in which the trainer takes what is there, the time in which it has no CPU: the workers are late, as they
    also are where they have the CPU that the model wants. Waits of a tenth of the longest and more are the first ones.
    """
    waits = [(b - a, taken.share("off")) for a, b, taken, *_ in spans.of("wait")]
    first = max(wait for wait, _ in waits) / 10
    late = sum(wait if wait >= first else wait * off for wait, off in waits)
    return late + spans.own("compute", part="off")


if __name__ == "__main__":
    main()
