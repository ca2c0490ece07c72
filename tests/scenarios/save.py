"""A model on data in memory that writes its state to disk every few steps."""

import os

import torch

from kit import log
from kit.job import here
from kit.net import Net


def main():
    job = here()
    net = Net(job.compute_ms)
    state = {"layer": net.layer.state_dict(), "weights": torch.rand(int(job.state_mb * 262144))}
    path = os.path.join(job.data, "last.pt")
    end, turn = log.now(), 0
    while True:
        used = log.used()
        net.train()
        done = log.now()
        log.put("compute", end, done, log.used() - used)
        turn += 1
        if job.fault and turn % int(job.every) == 0:
            with log.span("save"):
                with open(path + ".new", "wb") as file:
                    torch.save(state, file)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(path + ".new", path)
        done = log.now()
        log.put("turn", end, done)
        job.turn_done()
        end = done


def cost(spans):
    """All of saving: serialising, writing, waiting for the disk, renaming. The step does not go on before."""
    return spans.own("save")


def fixed(spans):
    """Waiting for the disk, which takes as long on a CPU of any speed."""
    return spans.own("save", part="off")


if __name__ == "__main__":
    main()
