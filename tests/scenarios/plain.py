"""Data in memory, no loader."""

from kit import log
from kit.job import here
from kit.net import Net


def main():
    job = here()
    net = Net(job.compute_ms)
    end = log.now()
    while True:
        used = log.used()
        net.train(int(job.batch))
        done = log.now()
        log.put("compute", end, done, log.used() - used)
        log.put("turn", end, done)
        job.turn_done()
        end = done


def cost(spans):
    """The model's own work is all there is."""
    return spans.own("compute", part="cpu")


if __name__ == "__main__":
    main()
