"""Training loops."""

import os

import torch
from torch.utils.data import DataLoader, Dataset

from kit import log


class Items(Dataset):
    """A data set whose item is a small tensor and the process that made it. A scenario says what making it takes."""

    def __init__(self, count):
        self.count = count
        self.log_folder = log.folder()

    def __setstate__(self, state):
        """In a spawned worker."""
        self.__dict__.update(state)
        log.open_in(self.log_folder)

    def __len__(self):
        return self.count

    def make(self, index):
        raise NotImplementedError

    def __getitem__(self, index):
        self.make(index)
        return torch.full((16,), float(index % 7)), os.getpid()


def loader(items, batch, workers, **more):
    """PyTorch's loader; with workers they persist, unless told otherwise."""
    if workers:
        more.setdefault("persistent_workers", True)
    return DataLoader(items, batch_size=batch, num_workers=workers, **more)


def log_turn(since, until):
    """Each batch is a turn."""
    log.put("turn", since, until)


def turns(job, batches, step, end=None, turn=log_turn):
    """One epoch. Turns follow each other without a gap, so starting an epoch belongs to its first turn.

    end: when the turn before this epoch ended. Gives back when the last turn ended, or None without a turn.
    turn: told of each batch, since the end of the one before it.
    """
    end = end or log.now()
    used_before = log.used()
    for batch in batches:
        got, used_got = log.now(), log.used()
        step(batch)
        done, used_done = log.now(), log.used()
        log.put("wait", end, got, used_got - used_before, tag=int(batch[1][-1]))
        log.put("compute", got, done, used_done - used_got)
        turn(end, done)
        job.turn_done()
        end, used_before = done, used_done
    return end


def forever(job, batches, step):
    """Epoch after epoch until the job is ended from outside."""
    end = None
    while True:
        end = turns(job, batches, step, end)
