"""A PyTorch DataLoader over small files: loader.py TRUTH [--workers N] [--epochs N] [--start fork|spawn|forkserver]
[--persistent] [--batch N] [--step-ms N] [--item-ms N] [--seconds N]
DIR...

With --seconds the epochs go on until then, each to its end.

The data set counts its own opens, reads and bytes in shared memory, so that what workers do is counted
too. The trainer sleeps --step-ms per batch in place of a model, and whoever makes a batch --item-ms per file.
"""

import argparse
import ctypes
import multiprocessing
import os
import time

import torch
from torch.utils.data import DataLoader, Dataset

import gate


class Files(Dataset):
    def __init__(self, folders, start, item_ms):
        self.item_s = item_ms / 1e3
        self.paths = [
            (index, os.path.join(folder, name))
            for index, folder in enumerate(folders)
            for name in sorted(os.listdir(folder))
        ]
        # opens, reads, bytes of each folder, behind one lock
        self.counts = multiprocessing.get_context(start).Array(ctypes.c_uint64, 3 * len(folders))

    def __len__(self):
        return len(self.paths)

    def __getitem__(self, item):
        folder, path = self.paths[item]
        if self.item_s:
            time.sleep(self.item_s)
        opens, reads, size, data = gate.read_counted(path)
        with self.counts.get_lock():
            self.counts[3 * folder] += opens
            self.counts[3 * folder + 1] += reads
            self.counts[3 * folder + 2] += size
        return torch.frombuffer(bytearray(data[:1024].ljust(1024, b"\0")), dtype=torch.uint8).clone()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("truth")
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--step-ms", type=float, default=2)
    parser.add_argument("--item-ms", type=float, default=0)
    parser.add_argument("--seconds", type=float, default=0)
    parser.add_argument("--start", default="fork")
    parser.add_argument("--persistent", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    files = Files(args.folders, args.start, args.item_ms)
    loader = DataLoader(
        files,
        batch_size=args.batch,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context=args.start if args.workers else None,
        persistent_workers=args.persistent and args.workers > 0,
    )
    gate.begin()
    waited, waited_cpu, steps, epochs, workers = 0.0, 0.0, 0, 0, set()
    began = time.monotonic()
    while epochs < args.epochs or time.monotonic() - began < args.seconds:
        epochs += 1
        batches = iter(loader)
        workers |= {worker.pid for worker in getattr(batches, "_workers", [])}
        while True:
            start, start_cpu = time.monotonic(), time.thread_time()
            batch = next(batches, None)
            waited += time.monotonic() - start
            waited_cpu += time.thread_time() - start_cpu
            if batch is None:
                break
            steps += 1
            time.sleep(args.step_ms / 1e3)
    seconds = time.monotonic() - began
    del batches
    gate.end()
    counts = list(files.counts)
    gate.truth(
        args.truth,
        dirs={
            folder: dict(zip(("opens", "reads", "bytes"), counts[3 * i : 3 * i + 3]))
            for i, folder in enumerate(args.folders)
        },
        workers=sorted(workers),
        steps=steps,
        waited_s=waited,
        waited_cpu_s=waited_cpu,
        seconds=seconds,
    )


if __name__ == "__main__":
    main()
