"""Load a: a training job on small JPEG files with a fixed amount of work: job.py TRUTH DIR STEPS

A 2-worker DataLoader decodes and augments, a small network learns on the CPU. The gates are those of tests/workloads/wl.h,
but that another `go` has the work done again. Wall time and CPU seconds are of the steps, the workers' start and end included.
"""

import json
import os
import resource
import select
import sys
import time

import numpy
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 32


def wait_line():
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.poll()
    return os.read(0, 64).startswith(b"go")


class Pictures(Dataset):
    def __init__(self, root, length):
        self.files = [
            (os.path.join(root, name, file), label)
            for label, name in enumerate(sorted(os.listdir(root)))
            for file in sorted(os.listdir(os.path.join(root, name)))
        ]
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        path, label = self.files[index * 7919 % len(self.files)]
        with Image.open(path) as picture:
            pixels = numpy.asarray(picture.convert("RGB").resize((96, 96)), dtype=numpy.float32)
        if index % 2:
            pixels = pixels[:, ::-1].copy()
        return torch.from_numpy(pixels).permute(2, 0, 1) / 127.5 - 1, label


def cpu_seconds():
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def main():
    out, root, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    data = Pictures(root, steps * BATCH)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=3), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU(),
        nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 100),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    os.write(1, b"ready %d\n" % os.getpid())
    line = b""
    while wait_line():
        began, cpu = time.monotonic(), cpu_seconds()
        loader = DataLoader(data, batch_size=BATCH, num_workers=2)
        done = 0
        for pixels, labels in loader:
            loss = criterion(model(pixels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
        del loader
        wall, cpu = time.monotonic() - began, cpu_seconds() - cpu
        assert done == steps
        truth = {"pid": os.getpid(), "wall_s": wall, "cpu_s": cpu, "units": steps * BATCH}
        line = (json.dumps(truth) + "\n").encode()
        os.write(1, b"done " + line)
    os.write(1, line) if out == "-" else open(out, "wb").write(line)


if __name__ == "__main__":
    main()
