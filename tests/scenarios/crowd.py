"""A loader that keeps up, on processors that the job does not have for itself."""

from kit import log, loop, work
from kit.job import here


class Pictures(loop.Items):
    def __init__(self, job):
        super().__init__(100_000)
        self.decode = work.Inflate(job.decode_ms)

    def make(self, index):
        with log.span("decode"):
            self.decode()


def main():
    job = here()
    compute = work.Torch(job.compute_ms)
    batches = loop.loader(Pictures(job), job.batch, job.workers, shuffle=True)
    loop.forever(job, batches, lambda batch: compute())


def cost(spans):
    """Time without a CPU, of the trainer in its own work and in its waits.

    The loader keeps up when it has its CPUs (the run without the fault shows it), so the trainer waits only because
    the worker, or the trainer when its batch is there, gets no CPU.

    Where somebody else keeps a CPU whatever happens to the fault, the job has one: while the worker decodes on it the
    trainer would have none without the fault either.
    """
    off = spans.own("compute", "wait", part="off")
    if spans.params.get("bystanders"):
        wanted = [(a, b) for a, b, *_ in spans.of("compute", "wait")]
        off -= spans.within(wanted, "decode", part="cpu")
    return off


if __name__ == "__main__":
    main()
