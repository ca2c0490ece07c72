"""A small network that is trained: forward, backward, optimiser; and what stands for the rest of a larger one."""

import torch

from kit import work


class Net:
    """`train` takes `compute_ms` for the rest, on one CPU."""

    def __init__(self, compute_ms, rows=4096):
        self._data = torch.rand(rows, 64)
        self.layer = torch.nn.Linear(64, 64)
        self._optimiser = torch.optim.SGD(self.layer.parameters(), lr=1e-3)
        self._rest = work.Torch(compute_ms)

    def train(self, batch=64):
        """A step on rows that are picked from memory."""
        picked = self._data[torch.randint(len(self._data), (batch,))]
        self._optimiser.zero_grad()
        self.layer(picked).square().mean().backward()
        self._rest()
        self._optimiser.step()
