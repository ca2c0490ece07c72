"""Data in memory, no loader."""

import torch

from kit import log, work
from kit.job import here


def main():
    job = here()
    data = torch.rand(4096, 64)
    compute = work.Torch(job.compute_ms)
    layer = torch.nn.Linear(64, 64)
    optimiser = torch.optim.SGD(layer.parameters(), lr=1e-3)
    end = log.now()
    while True:
        used = log.used()
        picked = data[torch.randint(len(data), (int(job.batch),))]
        optimiser.zero_grad()
        layer(picked).square().mean().backward()
        compute()
        optimiser.step()
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
