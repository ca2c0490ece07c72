"""The arithmetic of truth, on spans made by hand: `python3 -m unittest` in this folder."""

import os
import struct
import tempfile
import unittest

from kit.log import CODE, RECORD
from kit.truth import Spans, describe, union

MS = 1_000_000
TRAINER, WORKER, OTHER = 10, 20, 30


def spans(begin_ms, end_ms, **threads):
    """threads: pid -> rows of (kind, start ms, end ms, CPU ms, or that and ms of wanting one, tag)."""
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
        return Spans(folder, begin_ms * MS, end_ms * MS)


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

    def test_steps_are_those_that_ended_within(self):
        turns = [("turn", start, start + 100, 0, 0) for start in range(0, 1000, 100)]
        told = describe(spans(250, 850, p10=turns), 0.3)
        self.assertEqual(told["steps"]["count"], 6)
        self.assertAlmostEqual(told["steps"]["p50_ms"], 100)
        self.assertAlmostEqual(told["share"], 0.5)


if __name__ == "__main__":
    unittest.main()
