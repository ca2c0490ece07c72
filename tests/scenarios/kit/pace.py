"""How long a turn of a loop takes on average in a short window.

Such a window holds few turns, and of loops that do something every so many turns few of those: one more or less would
move the mean by a tenth. So turns are taken in cycles, each cycle that a window cuts counts by the part that lies
within, and no cycle is longer or shorter for being cut: long ones, which are cut more often, are not left out.
"""

import numpy as np


def turn_ms(turns, window, cycle):
    """Mean time of a turn in ms, or None when the window lies in no whole cycle.

    turns: start and end of every turn of the job from its first one on, in order. window: begin, end. All in ns.
    cycle: the number of turns after which the loop repeats itself.
    """
    cycles = len(turns) // cycle
    starts, ends = turns[: cycles * cycle : cycle, 0], turns[cycle - 1 :: cycle, 1][:cycles]
    within = np.minimum(ends, window[1]) - np.maximum(starts, window[0])
    seen = within > 0
    if not seen.any():
        return None
    parts = within[seen] / (ends - starts)[seen]
    return float(within[seen].sum() / (parts.sum() * cycle) / 1e6)
