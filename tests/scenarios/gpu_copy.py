"""Big batches copied to the GPU while it waits."""

from kit.gpu import train
from kit.job import here


def main():
    job = here()
    train(job, job.host_ms, job.copy_mb * 1e6 if job.fault else 1e5)


def cost(spans):
    """Time in blocking copies, of the trainer's wall time."""
    return spans.own("copy")


def idle(spans, times):
    """Seconds of copying within these times of the device's idling; the work between launches is hidden behind its kernels."""
    return spans.within(times, "copy")


if __name__ == "__main__":
    main()
