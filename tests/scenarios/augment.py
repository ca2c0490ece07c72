"""Items that take CPU time to make, in workers or, without workers, in the trainer itself."""

from kit import log, loop, work
from kit.job import here


class Pictures(loop.Items):
    def __init__(self, job):
        super().__init__(100_000)
        self.decode = work.Inflate(job.decode_ms if job.fault else job.decode_ms / 50)

    def make(self, index):
        with log.span("decode"):
            self.decode()


def main():
    job = here()
    compute = work.Torch(job.compute_ms)
    batches = loop.loader(Pictures(job), job.batch, job.workers, shuffle=True)
    loop.forever(job, batches, lambda batch: compute())


def cost(spans):
    """Making the batch that the trainer waits for, and CPU time of other batches while the model wants that CPU.

    Where the maker wants a CPU too, another worker has it for the same work: the trainer, which waits, does not.
    """
    return spans.behind_waits("decode", part="busy") + spans.own("compute", part="off")


if __name__ == "__main__":
    main()
