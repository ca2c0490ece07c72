"""A model on data in memory that keeps some memory of each step: for ever, or until a cache is full."""

import numpy as np

from kit import log
from kit.job import here
from kit.net import Net


def main():
    job = here()
    net = Net(job.compute_ms)
    kept = []
    end = log.now()
    while True:
        used = log.used()
        net.train()
        if not job.limit or len(kept) < job.limit:
            kept.append(np.ones(int(job.keep_kb * 256), np.float32))
        done = log.now()
        log.put("compute", end, done, log.used() - used)
        log.put("turn", end, done)
        job.turn_done()
        end = done


def cost(spans):
    """Growth costs no time: the model's own work bounds the step."""
    return spans.own("compute", part="cpu")


def kept(spans):
    """Bytes of each step, as long as it goes on."""
    return int(spans.params["keep_kb"] * 256) * 4 if not spans.params["limit"] else None


if __name__ == "__main__":
    main()
