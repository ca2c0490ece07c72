"""Spends CPU time in Python's allocator and in its interpreter, in turns: pyspend.py TRUTH [SECONDS]

The turns are of unequal length: of equal ones, a clock that keeps pace with them sees one half more often.
"""

import ctypes
import itertools
import os
import random
import sys
import threading
import time

import gate


def interpret(turns):
    x = 1
    for _ in itertools.repeat(None, turns):  # range() allocates its numbers
        x = (x * 5 + 3) & 31  # never beyond 256: such numbers are not allocated
    return x


def main():
    out, seconds = sys.argv[1], float(sys.argv[2])
    library = ctypes.PyDLL(os.path.join(os.path.dirname(os.path.abspath(__file__)), "pyspend.so"))
    library.spend.restype = ctypes.c_double
    library.spend.argtypes = [ctypes.c_double]
    spent = {"allocate": 0.0, "interpret": 0.0}
    gate.begin()
    begun = time.thread_time()
    while time.thread_time() - begun < seconds:
        spent["allocate"] += library.spend(random.uniform(0.004, 0.016))
        since = time.thread_time()
        interpret(random.randrange(160_000, 640_000))
        spent["interpret"] += time.thread_time() - since
    gate.end()
    gate.truth(out, tid=threading.get_native_id(), spent_s=spent)


main()
