"""Big temporary arrays in every step: each is mapped, touched for the first time and given back."""

import numpy as np

from kit import log, work
from kit.job import here


def main():
    job = here()
    compute = work.Torch(job.compute_ms)
    size = int(job.array_mb * 262144)
    kept = np.zeros(size, np.float32)
    end = log.now()
    while True:
        used = log.used()
        compute()
        log.put("compute", end, log.now(), log.used() - used)
        for _ in range(job.arrays):
            if job.fault:
                with log.span("alloc"):
                    array = np.empty(size, np.float32)
                    array[::1024] = 1
                array[::4096] += 1
                with log.span("alloc"):
                    del array
            else:
                kept[::1024] = 1
                kept[::4096] += 1
        done = log.now()
        log.put("turn", end, done)
        job.turn_done()
        end = done


def cost(spans):
    """Mapping, page faults (one value a page is written) and unmapping; the arithmetic is outside the span."""
    return spans.own("alloc")


if __name__ == "__main__":
    main()
