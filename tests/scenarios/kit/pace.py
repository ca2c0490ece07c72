"""How long a turn of a loop takes on average in a short window.

Such a window holds few turns, and of loops that do something every so many turns few of those: one more or less would
move the mean by a tenth. So turns are taken in cycles, each cycle that a window cuts counts by the part that lies
within, and no cycle is longer or shorter for being cut: long ones, which are cut more often, are not left out. What a turn
consists of is told of the same cycles, by the same parts: a cycle that is cut before its end would lack what it ends with.
"""

from typing import NamedTuple

import numpy as np


class Cycle(NamedTuple):
    begin: int
    end: int
    part: float  # of it, within the window


def cycles_in(turns, window, cycle):
    """All cycles of which a part lies in the window.

    turns: start and end of every turn of the job from its first one on, in order. window: begin, end. All in ns.
    cycle: the number of turns after which the loop repeats itself.
    """
    count = len(turns) // cycle
    starts, ends = turns[: count * cycle : cycle, 0], turns[cycle - 1 :: cycle, 1][:count]
    within = np.minimum(ends, window[1]) - np.maximum(starts, window[0])
    seen = within > 0
    starts, ends = starts[seen], ends[seen]
    return [Cycle(int(a), int(b), float(part)) for a, b, part in zip(starts, ends, within[seen] / (ends - starts))]


def turn_ms(turns, window, cycle):
    """Mean time of a turn in ms, or None when the window lies in no whole cycle."""
    return per_turn_ms(cycles_in(turns, window, cycle), cycle, lambda begin, end: (end - begin) / 1e9)


def per_turn_ms(cycles, cycle, seconds):
    """What a turn has on average of something, in ms, or None without a cycle. seconds: how much there is from begin to end (ns)."""
    if not cycles:
        return None
    # Those that are not cut are asked for together, where they follow each other.
    spans = []
    for each in cycles:
        if spans and each.part == spans[-1].part == 1.0 and each.begin == spans[-1].end:
            spans[-1] = Cycle(spans[-1].begin, each.end, 1.0)
        else:
            spans.append(each)
    total = sum(part * seconds(begin, end) for begin, end, part in spans)
    return float(total / (sum(each.part for each in cycles) * cycle) * 1e3)
