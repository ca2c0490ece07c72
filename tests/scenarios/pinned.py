"""A helper thread in the trainer takes batches from the workers, copies them and passes them on."""

import queue
import threading

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
    copied = queue.Queue(maxsize=2)

    def copy():
        while True:
            for values, makers in batches:
                copied.put((values.clone(), makers))

    threading.Thread(target=copy, daemon=True).start()
    loop.forever(job, iter(copied.get, None), lambda batch: compute())


def cost(spans):
    """As without the helper: making batches that the trainer waits for, or that have the CPU that it wants itself."""
    return spans.behind_waits("decode", part="busy") + spans.own("compute", part="off")


if __name__ == "__main__":
    main()
