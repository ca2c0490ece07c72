"""The arithmetic of truth, on spans made by hand: `python3 -m unittest` in this folder."""

import os
import struct
import tempfile
import unittest

import numpy as np

from kit.log import CODE, RECORD
from kit.pace import turn_ms
from kit.truth import Spans, describe, device, union

MS = 1_000_000
TRAINER, WORKER, OTHER = 10, 20, 30


def spans(*windows_ms, **threads):
    """windows: begin, end, begin, end ... threads: pid -> rows of (kind, start ms, end ms, CPU ms, or that and ms of wanting one, tag)."""
    with tempfile.TemporaryDirectory() as folder:
        for pid, rows in threads.items():
            pid = pid.lstrip("p")
            with open(os.path.join(folder, f"{pid}-{pid}"), "wb") as file:
                for kind, start, end, used, *wanting, tag in rows:
                    used, wanting = int(used * MS), int(sum(wanting) * MS)
                    file.write(RECORD.pack(CODE[kind], start * MS, end * MS, used, wanting, tag))
                file.write(bytes(RECORD.size))
        with open(os.path.join(folder, "turns"), "wb") as file:
            file.write(struct.pack("=q", 3))
        times = [time * MS for time in windows_ms]
        return Spans(folder, list(zip(times[::2], times[1::2])))


def loop(*lengths_ms, begin=0):
    """Turns of these lengths without a gap between them."""
    ends = begin * MS + np.cumsum(lengths_ms) * MS
    return np.stack([ends - np.array(lengths_ms) * MS, ends], axis=1)


class Truth(unittest.TestCase):
    def test_only_the_maker_of_the_batch_is_blamed(self):
        seen = spans(
            1000,
            2000,
            p10=[("wait", 1100, 1300, 0, WORKER), ("wait", 1500, 1600, 0, OTHER)],
            p20=[("read", 1050, 1200, 0, 0), ("read", 1500, 1600, 0, 0)],
            p30=[("read", 1100, 1300, 0, 0), ("decode", 1500, 1600, 0, 0)],
        )
        self.assertAlmostEqual(seen.waiting(), 0.3)
        self.assertAlmostEqual(seen.behind_waits("read"), 0.1)

    def test_the_watch_cuts(self):
        seen = spans(1000, 2000, p10=[("save", 900, 1100, 0, 0), ("save", 1900, 2500, 0, 0), ("save", 3000, 3100, 0, 0)])
        self.assertAlmostEqual(seen.own("save"), 0.2)

    def test_parts_on_and_off_a_cpu(self):
        seen = spans(0, 1000, p10=[("compute", 100, 500, 100, 0)])
        self.assertAlmostEqual(seen.own("compute", part="cpu"), 0.1)
        self.assertAlmostEqual(seen.own("compute", part="off"), 0.3)

    def test_wanting_a_cpu_is_no_waiting(self):
        seen = spans(0, 1000, p10=[("comm", 100, 500, 100, 50, 0)])
        self.assertAlmostEqual(seen.own("comm", part="off"), 0.3)
        self.assertAlmostEqual(seen.own("comm", part="blocked"), 0.25)
        self.assertAlmostEqual(seen.own("comm", part="busy"), 0.15)

    def test_spans_that_overlap_count_once(self):
        seen = spans(
            0,
            1000,
            p10=[("wait", 100, 300, 0, WORKER)],
            p20=[("lock", 50, 200, 0, 0)],
            p30=[("lock", 150, 250, 0, 0)],
        )
        self.assertAlmostEqual(seen.waits_while(seen.of("lock")), 0.15)
        self.assertEqual(union([(1, 3), (2, 4), (6, 7)]), [[1, 4], [6, 7]])

    def test_the_trainer_s_own_work_is_no_waiting(self):
        seen = spans(0, 1000, p10=[("wait", 100, 300, 40, 20, WORKER)], p20=[("lock", 50, 200, 0, 0)])
        self.assertAlmostEqual(seen.waits_while(seen.of("lock")), 0.1)
        self.assertAlmostEqual(seen.waits_while(seen.of("lock"), part="blocked"), 0.07)

    def test_steps_are_those_that_ended_within(self):
        turns = [("turn", start, start + 100, 0, 0) for start in range(0, 1000, 100)]
        told = describe(spans(250, 850, p10=turns), 0.3)
        self.assertEqual(told["steps"]["count"], 6)
        self.assertAlmostEqual(told["steps"]["p50_ms"], 100)
        self.assertAlmostEqual(told["share"], 0.5)

    def test_windows_follow_each_other(self):
        seen = spans(
            1000,
            2000,
            5000,
            5500,
            p10=[("wait", 1900, 2100, 0, WORKER), ("turn", 1800, 2400, 0, 0), ("wait", 5100, 5300, 0, WORKER)],
            p20=[("read", 1000, 2050, 0, 0), ("read", 5200, 5600, 0, 0)],
        )
        self.assertAlmostEqual(seen.seconds, 1.5)
        self.assertAlmostEqual(seen.waiting(), 0.3)
        self.assertAlmostEqual(seen.behind_waits("read"), 0.2)
        self.assertEqual([round(span[1], 6) for span in seen.of("read")], [1.0, 1.5])
        self.assertEqual(list(seen.times("wait")), [200])
        self.assertEqual(len(seen.times("turn")), 0)

    def test_the_model_s_work_of_each_window(self):
        """Turns of 100 ms with 20 ms of work, then of 50 ms with 40. Another rank's work is not the trainer's."""
        rows = []
        for begin, turn, work, count in (0, 100, 20, 10), (5000, 50, 40, 20):
            for start in range(begin, begin + turn * count, turn):
                rows += [("compute", start, start + work, work, 0), ("turn", start, start + turn, 0, 0)]
        seen = spans(100, 900, 5100, 5900, p10=rows, p20=[("compute", 0, 6000, 6000, 0)])
        told = seen.paces(1)
        for found, true in zip(told["turn_ms"] + told["model_ms"], [100, 50, 20, 40]):
            self.assertAlmostEqual(found, true)

    def test_what_a_faster_cpu_leaves_of_each_window(self):
        """Saves of 60 ms, 20 of them on a CPU, in turns of 100 ms; then of 30 ms in turns of 50."""
        rows = []
        for begin, turn, save, used, count in (0, 100, 60, 20, 10), (5000, 50, 30, 20, 20):
            for start in range(begin, begin + turn * count, turn):
                rows += [("save", start, start + save, used, 0), ("turn", start, start + turn, 0, 0)]
        seen = spans(100, 900, 5100, 5900, p10=rows)
        told = seen.paces(1, lambda part: part.own("save", part="off"))
        for found, true in zip(told["turn_ms"] + told["fixed_ms"], [100, 50, 40, 10]):
            self.assertAlmostEqual(found, true)
        self.assertEqual(seen.paces(1)["fixed_ms"], [0, 0])

    def test_a_turn_has_the_same_parts_wherever_the_window_ends(self):
        """Cycles of four turns of 50 ms with 40 ms of work each, the last one with 200 ms of saving as well."""
        rows = []
        for cycle in range(0, 4000, 400):
            for start in range(cycle, cycle + 200, 50):
                last = 200 * (start == cycle + 150)
                rows += [("compute", start, start + 40, 40, 0), ("turn", start, start + 50 + last, 0, 0)]
            rows.append(("save", cycle + 200, cycle + 400, 0, 0))
        for end in range(1000, 2000, 70):
            told = spans(410, end, p10=rows).paces(4, lambda part: part.own("save"))
            for name, true in ("turn_ms", 100), ("model_ms", 40), ("fixed_ms", 50):
                self.assertAlmostEqual(told[name][0], true, msg=f"{name} until {end}")

    def test_other_windows_have_their_own_waits(self):
        """The first window ends in the middle of a wait, and the second begins in the middle of another one."""
        seen = spans(
            0,
            7000,
            p10=[("wait", 1800, 2400, 0, WORKER), ("wait", 4500, 5100, 0, WORKER)],
            p20=[("read", 1900, 2100, 0, 0), ("read", 4900, 5400, 0, 0)],
        )
        self.assertAlmostEqual(seen.behind_waits("read"), 0.4)
        for window in (1000 * MS, 2000 * MS), (5000 * MS, 6000 * MS):
            self.assertAlmostEqual(seen.over([window]).behind_waits("read", part="blocked"), 0.1)

    def test_a_gpu_idles_while_no_kernel_runs(self):
        """Copies of 30 ms, then two kernels of 20 ms, asked for 10 ms and 15 ms later: the second follows the first."""
        rows = []
        for start in range(0, 1000, 100):
            rows += [
                ("copy", start, start + 30, 0, 0),
                ("launch", start + 30, start + 40, 5, 20_000),
                ("launch", start + 40, start + 45, 5, 20_000),
                ("sync", start + 45, start + 80, 0, 0),
            ]
        seen = spans(0, 1000, p10=rows)
        told = device(seen, lambda spans, times: spans.within(times, "copy"))
        self.assertAlmostEqual(told["busy_share"], 0.4)
        self.assertAlmostEqual(told["idle_s"], 0.6)
        self.assertAlmostEqual(told["idle_cause_s"], 0.3)
        self.assertAlmostEqual(told["idle_share"], 0.5)
        host = device(seen, lambda spans, times: spans.within(times, "launch", part="cpu"))
        self.assertAlmostEqual(host["idle_cause_s"], 0.05)


class Pace(unittest.TestCase):
    def test_a_cut_turn_counts_by_its_part(self):
        self.assertAlmostEqual(turn_ms(loop(*[100] * 20), (250 * MS, 830 * MS), 1), 100)
        # All of 300, half of 100: 350 ms in 1.5 turns.
        self.assertAlmostEqual(turn_ms(loop(100, 300, 100), (100 * MS, 450 * MS), 1), 350 / 1.5)

    def test_cycles_do_not_depend_on_where_the_window_lies(self):
        """Three turns of 20 ms and one of 240, 75 ms on average."""
        turns = loop(*[20, 20, 20, 240] * 20, begin=700)
        for begin in range(1000, 1300, 37):
            self.assertAlmostEqual(turn_ms(turns, (begin * MS, (begin + 1000) * MS), 4), 75)

    def test_what_lies_outside_all_turns_does_not_count(self):
        turns = np.concatenate([loop(*[50] * 10), loop(*[50] * 10, begin=5000)])
        self.assertAlmostEqual(turn_ms(turns, (400 * MS, 5100 * MS), 1), 50)
        self.assertIsNone(turn_ms(turns, (1000 * MS, 4000 * MS), 1))
        self.assertIsNone(turn_ms(turns[:3], (0, 1000 * MS), 4))


if __name__ == "__main__":
    unittest.main()
