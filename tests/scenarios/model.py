"""A small network with forward, backward and optimiser: the model bounds the step, the loader is ahead.

With `accumulate` a turn has so many batches, after the last of which the optimiser runs; with `evaluate` an evaluation follows each epoch.
"""

import torch

from kit import log, loop, work
from kit.job import here


class Pictures(loop.Items):
    def __init__(self, job, count):
        super().__init__(count)
        self.decode = work.Inflate(job.decode_ms)

    def make(self, index):
        with log.span("decode"):
            self.decode()


class Net:
    def __init__(self, job):
        torch.manual_seed(job.seed)
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
        self.optimiser = torch.optim.SGD(self.layers.parameters(), lr=1e-3)
        self.more = work.Torch(job.compute_ms)
        self.accumulate, self.seen = job.accumulate, 0
        self.begun = None

    def train(self, batch):
        self.layers(batch[0]).square().mean().backward()
        self.more()
        self.seen += 1
        if self.seen % self.accumulate == 0:
            self.optimiser.step()
            self.optimiser.zero_grad()

    def turn(self, since, until):
        """Turns are the optimiser's. An evaluation between two batches of one, or before its first one, is part of it."""
        if self.accumulate == 1:
            loop.log_turn(since, until)
        elif self.seen % self.accumulate == 0:
            loop.log_turn(self.begun or since, until)
            self.begun = until

    def evaluate(self, batch):
        with torch.no_grad():
            self.layers(batch[0])
            self.more(self.more.ms / 2)


def main():
    job = here()
    net = Net(job)
    more = {"multiprocessing_context": job.start} if job.workers else {}
    batches = loop.loader(Pictures(job, job.epoch * job.batch), job.batch, job.workers, shuffle=True, **more)
    held_out = loop.loader(Pictures(job, job.evaluate * job.batch), job.batch, min(job.workers, 1), **more)
    if job.evaluate:
        # Its workers persist: start them before the loop is warm.
        for batch in held_out:
            net.evaluate(batch)
    end = None
    while True:
        end = loop.turns(job, batches, net.train, end, net.turn)
        if job.evaluate:
            for batch in held_out:
                used, got = log.used(), log.now()
                net.evaluate(batch)
                done = log.now()
                log.put("compute", got, done, log.used() - used)
                log.put("eval", end, done)
                end = done


def cost(spans):
    """The model's own work."""
    return spans.own("compute", part="cpu")


if __name__ == "__main__":
    main()
