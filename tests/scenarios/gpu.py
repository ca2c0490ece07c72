"""The GPU bounds the step."""

from kit.gpu import train
from kit.job import here


def main():
    job = here()
    train(job, job.host_ms, job.copy_mb * 1e6)


def cost(spans):
    """The GPU works from the first launch until the trainer's wait for it ends."""
    return spans.own("launch", "sync")


healthy = cost


if __name__ == "__main__":
    main()
