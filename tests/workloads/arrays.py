"""Makes arrays, in turns that ask the allocator for the same each time: arrays.py TRUTH SECONDS
Each is larger than what Python's and numpy's own pools serve. The smallest of a turn lives for KEPT turns, the others are
gone with their turn. With `count` for SECONDS (and counter.so preloaded, which
counts) it makes TURNS turns and says how many calls they took.
"""

import collections
import ctypes
import sys
import time

import numpy

import gate

TURNS = 1000
KEPT = 4096  # turns: for milliseconds, however fast the machine
ELEMENTS = 1000  # of 8 bytes: so that allocating is a part of the work that clock samples show
CLASSES = 64


def turns(base, count, kept):
    for _ in range(count):
        a = base + 1.0
        b = numpy.sin(a)
        c = numpy.empty(ELEMENTS // 2)
        c[:] = b[::2]
        kept.append(c)
        a = b = c = None


def main():
    out, what = sys.argv[1:3]
    base = numpy.arange(float(ELEMENTS))
    kept = collections.deque(maxlen=KEPT)
    turns(base, KEPT + TURNS, kept)
    if what == "count":
        library = ctypes.CDLL(None)
        counts = (ctypes.c_uint64 * (2 + CLASSES))()
        library.allocations(counts)
        before = list(counts)
        turns(base, TURNS, kept)
        library.allocations(counts)
        made = [(now - then) / TURNS for now, then in zip(counts, before)]
        sizes = {1 << bits >> 1: n for bits, n in enumerate(made[2:]) if n}
        gate.truth(out, calls_per_turn=made[0], bytes_per_turn=made[1], sizes_per_turn=sizes)
        return
    gate.begin()
    done, begun = 0, time.monotonic()
    while time.monotonic() - begun < float(what):
        turns(base, TURNS, kept)
        done += TURNS
    seconds = time.monotonic() - begun
    gate.end()
    gate.truth(out, turns=done, turns_per_s=done / seconds, kept_s=KEPT * seconds / done)


main()
