"""Loader threads in the trainer's own process and a queue. The decoder is pure Python, or it gives the GIL up."""

import queue
import threading

from kit import log, work
from kit.job import here


def main():
    job = here()
    decode = (work.Python if job.fault else work.Inflate)(job.decode_ms)
    compute = work.Product(job.compute_ms)
    ready = queue.Queue(maxsize=8)

    def make():
        while True:
            with log.span("decode"):
                decode()
            ready.put(1)

    for _ in range(job.threads):
        threading.Thread(target=make, daemon=True).start()
    end = log.now()
    while True:
        ready.get()
        got, used = log.now(), log.used()
        compute()
        done = log.now()
        log.put("wait", end, got)
        log.put("compute", got, done, log.used() - used)
        log.put("turn", end, done)
        job.turn_done()
        end = done


def cost(spans):
    """Only one decoder runs at a time, so the trainer waits for a batch, and for the GIL between two products.

    Wanting a CPU is no waiting for the GIL: decoders that need none would have it as well.
    """
    return spans.waits_while(spans.of("decode")) + spans.own("compute", part="blocked")


if __name__ == "__main__":
    main()
