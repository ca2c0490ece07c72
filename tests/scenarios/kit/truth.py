"""What the spans of a finished job say about the time in which it was watched.

`python3 -m kit.truth FOLDER LOG CYCLE FROM TO [FROM TO ...]` prints it as JSON; FROM and TO are ns of CLOCK_MONOTONIC, of
one window or of several, CYCLE is the number of turns after which the loop repeats itself. What the injected cause
costs is said by the scenario itself, by its function `cost`; `fixed` says how much of the time is the same on a CPU of
another speed (none, where there is no such function).
"""

import copy
import importlib.util
import json
import os
import sys

from bisect import bisect_left, bisect_right
from typing import NamedTuple

import numpy as np

from kit import gpu
from kit.log import CODE, RECORD
from kit.pace import cycles_in, per_turn_ms, turn_ms


class Parts(NamedTuple):
    """Shares of a span in which its thread was on a CPU, and wanted one."""

    on_cpu: float
    wanting: float

    @classmethod
    def of(cls, length, on_cpu, wanting):
        if length <= 0:
            return cls(0.0, 0.0)
        on_cpu = min(1.0, on_cpu / length)
        return cls(on_cpu, min(1.0 - on_cpu, wanting / length))

    def share(self, part):
        """`all`; `cpu`: on one; `off`: not on one; of that `wanting` one, or `blocked`; `busy`: on one or wanting one."""
        off, busy = 1.0 - self.on_cpu, self.on_cpu + self.wanting
        parts = {"all": 1.0, "cpu": self.on_cpu, "off": off, "wanting": self.wanting, "blocked": 1.0 - busy, "busy": busy}
        return parts[part]


def records(path):
    """All records of a thread, as rows of integers. What was never written is a hole in the file, and not read."""
    fields = RECORD.size // 8
    with open(path, "rb") as file:
        written = file.seek(0, os.SEEK_HOLE) // RECORD.size
        file.seek(0)
        rows = np.fromfile(file, dtype=np.int64, count=written * fields).reshape(-1, fields)
    return rows[rows[:, 0] > 0]


class Spans:
    """All spans of a job, cut to the windows in which it was watched: (begin, end) in ns of CLOCK_MONOTONIC.

    Rows: start, end (s of watched time: the windows follow each other without a gap), Parts, tag, pid, tid.
    turns: of the whole job, rows of start and end in ns. params: the scenario's numbers and words, by name.
    """

    def __init__(self, folder, windows, params=None):
        self.params = params or {}
        self._threads = []
        for name in os.listdir(folder):
            if "-" in name:
                self._threads.append((*map(int, name.split("-")), records(os.path.join(folder, name))))
        turns = [raw[raw[:, 0] == CODE["turn"], 1:3] for *_, raw in self._threads]
        self.turns = np.concatenate(turns) if turns else np.empty((0, 2), np.int64)
        self.turns = self.turns[self.turns[:, 1].argsort()]
        self._watch(windows)

    def over(self, windows):
        """The spans of the same job in other windows."""
        other = copy.copy(self)
        other._watch(windows)
        return other

    def _watch(self, windows):
        self.windows = windows
        self.seconds = sum(end - begin for begin, end in windows) / 1e9
        self._rows = {kind: [] for kind in CODE}
        self._whole = {kind: [] for kind in CODE}
        names = {code: kind for kind, code in CODE.items()}
        for pid, tid, raw in self._threads:
            watched = 0
            for begin, end in windows:
                for code, start, stop, on_cpu, wanting, tag in raw[(raw[:, 2] > begin) & (raw[:, 1] < end)]:
                    parts = Parts.of(stop - start, on_cpu, wanting)
                    if stop <= end:
                        self._whole[names[code]].append((stop - start) / 1e6)
                    a, b = (watched + cut - begin for cut in (max(start, begin), min(stop, end)))
                    self._rows[names[code]].append((a / 1e9, b / 1e9, parts, tag, pid, tid))
                watched += end - begin
        for rows in self._rows.values():
            rows.sort()

    def of(self, *kinds):
        return sorted(span for kind in kinds for span in self._rows[kind])

    def times(self, kind):
        """Lengths in ms of the spans that ended within a window."""
        return np.array(self._whole[kind])

    def own(self, *kinds, part="all"):
        """Seconds in spans of these kinds, of the whole job. `part`: see Parts."""
        return sum((b - a) * c.share(part) for a, b, c, *_ in self.of(*kinds))

    def of_trainer(self, kind):
        """CPU seconds in spans of this kind, of the threads that do the turns."""
        trainers = {span[-1] for span in self.of("turn", "eval")}
        return sum((b - a) * c.on_cpu for a, b, c, *_, tid in self.of(kind) if tid in trainers)

    def paces(self, cycle, fixed=None):
        """Of each window the mean time of a turn in ms, and how much of it was CPU time of the model's work, and time
        that a faster or slower CPU would not change: seconds that `fixed` gives for spans.
        """
        told = {"turn_ms": [], "model_ms": [], "fixed_ms": []}
        for window in self.windows:
            cycles = cycles_in(self.turns, window, cycle)
            told["turn_ms"].append(turn_ms(self.turns, window, cycle))
            for name, of in ("model_ms", lambda spans: spans.of_trainer("compute")), ("fixed_ms", fixed or (lambda _: 0.0)):
                told[name].append(per_turn_ms(cycles, cycle, lambda *window: of(self.over([window]))) or 0.0)
        return told

    def behind_waits(self, *kinds, part="all"):
        """Seconds in which the trainer waited for a batch while the process that made it was in such a span.

        That is the part of the wait that would go with the cause: what the same worker did while nobody waited, and
        what other workers did meanwhile, delays nothing.
        """
        by_pid = {}
        for a, b, c, _, pid, _ in self.of(*kinds):
            by_pid.setdefault(pid, []).append((a, b, c.share(part)))
        total = 0.0
        for a, b, _, maker, pid, _ in self.of("wait"):
            for x, y, w in by_pid.get(maker or pid, ()):
                total += max(0.0, min(b, y) - max(a, x)) * w
        return total

    def waits_while(self, spans, part="all"):
        """Seconds in which the trainer waited for a batch and any of these spans (start, end) was under way.

        `part` is one of the trainer's time: see Parts.
        """
        merged = union(spans)
        return sum(
            max(0.0, min(b, y) - max(a, x)) * c.share(part)
            for a, b, c, *_ in self.of("wait")
            for x, y in merged
            if x < b and y > a
        )

    def within(self, times, *kinds, part="all"):
        """Seconds in spans of these kinds within disjoint times (start, end) in order."""
        starts, total = [start for start, _ in times], 0.0
        for a, b, c, *_ in self.of(*kinds):
            for x, y in times[max(0, bisect_right(starts, a) - 1) : bisect_left(starts, b)]:
                total += max(0.0, min(b, y) - max(a, x)) * c.share(part)
        return total

    def waiting(self):
        return self.own("wait")


def union(spans):
    """The same time as disjoint spans in order."""
    merged = []
    for a, b in sorted(span[:2] for span in spans):
        if merged and a <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], b)
        else:
            merged.append([a, b])
    return merged


def describe(spans, cost):
    turns, evals = spans.times("turn"), spans.times("eval")

    def steps(times):
        if not len(times):
            return {"count": 0, "mean_ms": None, "p50_ms": None, "p95_ms": None}
        # One step more or less moves a percentile, far where long and short steps alternate: two points around it.
        told = {"count": len(times), "mean_ms": float(times.mean())}
        for name, points in ("p50", (48, 50, 52)), ("p95", (93, 95, 97)):
            low, middle, high = (float(np.percentile(times, point)) for point in points)
            told |= {f"{name}_ms": middle, f"{name}_range_ms": [low, high]}
        return told

    return {
        "seconds": spans.seconds,
        "share": cost / spans.seconds,
        "wait_share": spans.waiting() / spans.seconds,
        # Of the trainer itself: another rank may have more to do.
        "compute_cpu_ms": spans.of_trainer("compute") * 1e3 / max(1, len(turns) + len(evals)),
        "steps": steps(turns),
        "steps_with_evaluation": steps(np.concatenate([turns, evals])),
    }


def model(spans):
    """The model's work, and what the trainer does itself to take a batch that another process made."""
    taken = sum((b - a) * c.on_cpu for a, b, c, maker, pid, _ in spans.of("wait") if maker and maker != pid)
    return spans.own("compute", part="cpu") + taken


def device(spans, cause):
    """Of a GPU: the share of time in which it ran a kernel, for how long it did not, and how much of that the cause took."""
    times = gpu.idle(spans)
    idle = sum(end - begin for begin, end in times)
    told = {"busy_share": 1 - idle / spans.seconds, "idle_s": idle}
    if cause:
        told["idle_cause_s"] = float(cause(spans, times))
        told["idle_share"] = told["idle_cause_s"] / idle
    return told


def main():
    folder, logs, cycle, *times = sys.argv[1:]
    times = list(map(int, times))
    script = next(name for name in os.listdir(folder) if name.endswith(".py"))
    spec = importlib.util.spec_from_file_location("job", os.path.join(folder, script))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
        params = json.load(file)["params"]
    spans = Spans(logs, list(zip(times[::2], times[1::2])), params)
    told = describe(spans, float(module.cost(spans)))
    # Healthy variants of a loop are bounded by the model's own work.
    told["compute_share"] = getattr(module, "healthy", model)(spans) / spans.seconds
    if spans.of("launch"):
        told |= device(spans, getattr(module, "idle", None))
    told |= spans.paces(int(cycle), getattr(module, "fixed", None))
    if hasattr(module, "kept"):
        told["kept_bytes_per_step"] = module.kept(spans)
    told["named"] = [int(pid) for pid in module.named(spans)] if hasattr(module, "named") else []
    print(json.dumps(told))


if __name__ == "__main__":
    main()
