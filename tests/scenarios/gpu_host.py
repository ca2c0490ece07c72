"""Work of the CPU between launches: the GPU runs dry."""

from kit.gpu import train
from kit.job import here


def main():
    job = here()
    train(job, job.host_ms if job.fault else job.host_ms / 20, job.copy_mb * 1e6)


def cost(spans):
    """CPU time up to the last launch, of the trainer's wall time."""
    return spans.own("launch", part="cpu")


def idle(spans, times):
    """CPU time up to the last launch within these times of the device's idling: each kernel is shorter than the work between two."""
    return spans.within(times, "launch", part="cpu")


if __name__ == "__main__":
    main()
