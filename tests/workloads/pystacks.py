"""Spends its time in two functions: pystacks.py TRUTH SECONDS [again | aside]

With `again` it executes itself once it has passed its start gate; with `aside` another thread does all of it."""

import os
import sys
import threading
import time

import gate

SPENT = {"left": 0.0, "right": 0.0}


def busy(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(100))


def left(seconds):
    since = time.perf_counter()
    busy(seconds)
    SPENT["left"] += time.perf_counter() - since


def right(seconds):
    since = time.perf_counter()
    # Waiting counts as well.
    time.sleep(seconds)
    SPENT["right"] += time.perf_counter() - since


def deep(levels, seconds):
    if levels:
        return deep(levels - 1, seconds)
    return busy(seconds)


def turns(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        left(0.021)
        right(0.009)


def main():
    out, seconds = sys.argv[1], float(sys.argv[2])
    if "again" in sys.argv:
        gate.begin()
        os.execv(sys.executable, [sys.executable, __file__, out, str(seconds), "second"])
    if "second" not in sys.argv:
        gate.begin()
    if "aside" in sys.argv:
        thread = threading.Thread(target=turns, args=(seconds,))
        thread.start()
        thread.join()
        gate.end()
        gate.truth(out, spent_s=SPENT, tid=thread.native_id)
        return
    turns(seconds)
    # Deeper than what is kept of a stack.
    deep(300, seconds / 8)
    gate.end()
    lines = {f.__name__: f.__code__.co_firstlineno for f in (left, right, deep)}
    gate.truth(out, spent_s=SPENT, lines=lines, file=__file__)


main()
