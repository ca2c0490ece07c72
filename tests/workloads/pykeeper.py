"""Keeps what it was given, without end: pykeeper.py TRUTH RATE SECONDS     RATE in bytes a second

In steps of 50 ms: objects of three sizes that stay, and four times as much that is given back.
"""

import sys
import time

import gate

STEP_S = 0.05
KEPT = []
BEFORE = sys.getsizeof(b"")


def remember(size):
    """Touches all that it keeps."""
    # Of Python's own pools (up to 512 bytes), and of the C library's heap, small and large; each with what is before its bytes.
    for whole, count in ((512, size // 2 // 512), (8192, size // 4 // 8192), (size // 4, 1)):
        KEPT.extend(b"x" * (whole - BEFORE) for _ in range(count))


def forget(size):
    return len([bytearray(8192) for _ in range(size // 8192)])


def main():
    out, rate, length = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
    gate.begin()
    begin = due = time.monotonic()
    while time.monotonic() - begin < length:
        size = int(rate * STEP_S)
        remember(size)
        forget(4 * size)
        due += STEP_S
        time.sleep(max(0.0, due - time.monotonic()))
    seconds = time.monotonic() - begin
    gate.end()
    gate.truth(out, kept=sum(map(sys.getsizeof, KEPT)) + sys.getsizeof(KEPT), seconds=seconds)


main()
