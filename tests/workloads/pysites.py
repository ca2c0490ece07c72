"""Keeps memory in two functions, three times as much in one: pysites.py TRUTH RATE SECONDS     RATE in bytes a second

Each block is a mapping of its own, which nothing had before and nothing gets back.
"""

import sys
import time

import gate

BLOCK = 256 << 10
KEPT = {"often": 0, "seldom": 0}
BLOCKS = []


def often():
    for _ in range(3):
        BLOCKS.append(b"x" * BLOCK)
        KEPT["often"] += BLOCK


def seldom():
    BLOCKS.append(b"x" * BLOCK)
    KEPT["seldom"] += BLOCK


def main():
    out, rate, length = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    gate.begin()
    begin = due = time.monotonic()
    while time.monotonic() - begin < length:
        often()
        seldom()
        due += 4 * BLOCK / rate
        time.sleep(max(0.0, due - time.monotonic()))
    seconds = time.monotonic() - begin
    gate.end()
    gate.truth(out, seconds=seconds, **KEPT)


main()
