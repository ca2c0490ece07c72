"""Fills a cache that levels off: pyfill.py TRUTH KIND RATE SECONDS FILLS_S     RATE in bytes a second

lru      takes RATE for FILLS_S, and from then on puts out what was used longest ago
memo     asks for one of FILLS_S seconds of RATE, at random, and makes what is not there yet: 63 % are after FILLS_S
Beside it, four times as much is taken and given back.
"""

import collections
import random
import sys
import time

import gate

STEP_S = 0.05
VALUE = 4096


def value():
    return bytearray(VALUE)


def main():
    out, kind = sys.argv[1:3]
    rate, length, fills = map(float, sys.argv[3:6])
    capacity = int(rate * fills / VALUE)
    chance = random.Random(1)
    cache = collections.OrderedDict()
    asked = owed = 0
    gate.begin()
    begin = due = time.monotonic()
    while time.monotonic() - begin < length:
        owed += rate * STEP_S / VALUE
        while owed >= 1:
            owed -= 1
            asked += 1
            key = asked if kind == "lru" else chance.randrange(capacity)
            if key not in cache:
                cache[key] = value()
            cache.move_to_end(key)
            if len(cache) > capacity:
                cache.popitem(last=False)
        del [value() for _ in range(int(4 * rate * STEP_S / VALUE))][:]
        due += STEP_S
        time.sleep(max(0.0, due - time.monotonic()))
    gate.end()
    gate.truth(out, kept=len(cache) * VALUE, capacity=capacity * VALUE)


main()
