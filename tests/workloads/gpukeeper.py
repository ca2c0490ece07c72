"""Keeps memory of the fake GPU: gpukeeper.py TRUTH LIBRARY RATE SECONDS     RATE in bytes a second

In steps of 50 ms: three quarters of it by one function, a quarter by another, and four times as much that is given back.
"""

import ctypes
import sys
import time

import gate

STEP_S = 0.05
KEPT = {"often": 0, "seldom": 0}


def often(cuda, size):
    for _ in range(3):
        cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size // 4))
        KEPT["often"] += size // 4


def seldom(cuda, size):
    cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size // 4))
    KEPT["seldom"] += size // 4


def scratch(cuda, size):
    blocks = [ctypes.c_void_p() for _ in range(4)]
    for block in blocks:
        cuda.cudaMalloc(ctypes.byref(block), ctypes.c_size_t(size))
    for block in blocks:
        cuda.cudaFree(block)


def main():
    out, library, rate, length = sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4])
    cuda = ctypes.CDLL(library)
    gate.begin()
    begin = due = time.monotonic()
    while time.monotonic() - begin < length:
        size = int(rate * STEP_S)
        often(cuda, size)
        scratch(cuda, size)
        seldom(cuda, size)
        due += STEP_S
        time.sleep(max(0.0, due - time.monotonic()))
    seconds = time.monotonic() - begin
    gate.end()
    gate.truth(out, seconds=seconds, **KEPT)


main()
