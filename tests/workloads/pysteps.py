"""Trains a small model on what is in memory: pysteps.py TRUTH SECONDS WAY

WAY  plain        batches of about a size; every 50 steps an evaluation of several batches
     checkpoint   parts of the model are recomputed, each by a backward pass inside the step's
     exception    every tenth backward pass ends by an exception, which the loop catches
     accumulate   gradients of four parts of each batch are accumulated
     losses       a second model judges what the first one makes, and learns from a loss of its own; each step is taken by one function

Notes when each turn of the loop began."""

import sys
import time
import warnings

import torch
from torch.utils.checkpoint import checkpoint

import gate

WIDTH = 64
EVALUATE_EVERY = 50
FAIL_EVERY = 10


def parts():
    return torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU()) for _ in range(6)
    )


def fail(_gradient):
    raise ValueError("as asked for")


def main():
    out, seconds, way = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(11)
    model, head = parts(), torch.nn.Linear(WIDTH, 10)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters)
    judge = torch.nn.Sequential(torch.nn.Linear(10, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, 1))
    judging = torch.optim.Adam(judge.parameters())
    data, labels = torch.randn(8192, WIDTH), torch.randint(0, 10, (8192,))

    def forward(x):
        for part in model:
            x = checkpoint(part, x, use_reentrant=True) if way == "checkpoint" else part(x)
        return head(x)

    def learn(loss, by):
        by.zero_grad()
        loss.backward()
        by.step()

    gate.begin()
    began, failed = [], 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began.append(time.monotonic_ns())
        rows = torch.randint(0, 8192, (int(torch.randint(360, 440, ())) // 4 * 4,))
        x = data[rows].requires_grad_()
        if way == "accumulate":
            optimizer.zero_grad()
            for part, wanted in zip(x.chunk(4), labels[rows].chunk(4)):
                torch.nn.functional.cross_entropy(forward(part), wanted).backward()
            optimizer.step()
            continue
        loss = torch.nn.functional.cross_entropy(forward(x), labels[rows])
        if way == "exception" and len(began) % FAIL_EVERY == 0:
            x.register_hook(fail)
        try:
            learn(loss, optimizer)
        except ValueError:
            failed += 1
        if way == "losses":
            learn(judge(forward(x).detach()).square().mean(), judging)
        if way == "plain" and len(began) % EVALUATE_EVERY == 0:
            with torch.no_grad():
                for chunk in data.split(2048):
                    forward(chunk)
    gate.end()
    times = sorted(b - a for a, b in zip(began, began[1:]))
    at = {n: times[int(len(times) * n / 100)] / 1e6 for n in (48, 52, 93, 97)}
    gate.truth(
        out,
        steps=len(began),
        failed=failed,
        p50_ms=[at[48], at[52]],
        p95_ms=[at[93], at[97]],
    )


main()
