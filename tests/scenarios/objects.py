"""Objects fetched over HTTP by workers, one connection each."""

import http.client
import os

from kit import log, loop, work
from kit.job import here


class Objects(loop.Items):
    def __init__(self, job):
        super().__init__(100_000)
        self.address = job.data
        self.decode = work.Inflate(job.decode_ms)
        self.pid = None

    def make(self, index):
        if self.pid != os.getpid():
            self.pid, self.connection = os.getpid(), http.client.HTTPConnection(self.address)
        with log.span("fetch"):
            self.connection.request("GET", f"/{index}")
            self.connection.getresponse().read()
        with log.span("decode"):
            self.decode()


def main():
    job = here()
    compute = work.Torch(job.compute_ms)
    batches = loop.loader(Objects(job), job.batch, job.workers, shuffle=True)
    loop.forever(job, batches, lambda batch: compute())


def cost(spans):
    """The worker sleeps on its socket."""
    return spans.behind_waits("fetch", part="blocked")


# Sleeping takes as long on a CPU of any speed.
fixed = cost


if __name__ == "__main__":
    main()
