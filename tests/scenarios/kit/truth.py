"""What the spans of a finished job say about the time in which it was watched.

`python3 -m kit.truth FOLDER LOG FROM TO` prints it as JSON; FROM and TO are ns of CLOCK_MONOTONIC. What the injected
cause costs is said by the scenario itself, by its function `cost`.
"""

import importlib.util
import json
import os
import sys

from typing import NamedTuple

import numpy as np

from kit.log import CODE, RECORD


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
        """`all`; `cpu`: on one; `off`: not on one; of that `wanting` one, or `blocked`."""
        off = 1.0 - self.on_cpu
        parts = {"all": 1.0, "cpu": self.on_cpu, "off": off, "wanting": self.wanting, "blocked": off - self.wanting}
        return parts[part]


class Spans:
    """All spans of a job, cut to the watch. Rows: start, end (s since the watch began), Parts, tag, pid, tid."""

    def __init__(self, folder, begin, end):
        self.seconds = (end - begin) / 1e9
        rows = {kind: [] for kind in CODE}
        whole = {kind: [] for kind in CODE}
        names = {code: kind for kind, code in CODE.items()}
        for name in os.listdir(folder):
            if "-" not in name:
                continue
            pid, tid = map(int, name.split("-"))
            raw = np.fromfile(os.path.join(folder, name), dtype=np.int64).reshape(-1, RECORD.size // 8)
            for code, start, stop, on_cpu, wanting, tag in raw[raw[:, 0] > 0]:
                parts = Parts.of(stop - start, on_cpu, wanting)
                a, b = (start - begin) / 1e9, (stop - begin) / 1e9
                if 0 <= b <= self.seconds:
                    whole[names[code]].append((a, b))
                a, b = max(a, 0.0), min(b, self.seconds)
                if b > a:
                    rows[names[code]].append((a, b, parts, tag, pid, tid))
        self._rows = {kind: sorted(spans) for kind, spans in rows.items()}
        self._whole = whole

    def of(self, *kinds):
        return sorted(span for kind in kinds for span in self._rows[kind])

    def times(self, kind):
        """Lengths in ms of the spans that ended within the watch."""
        return np.array([(b - a) * 1e3 for a, b in self._whole[kind]])

    def own(self, *kinds, part="all"):
        """Seconds in spans of these kinds, of the whole job. `part`: see Parts."""
        return sum((b - a) * c.share(part) for a, b, c, *_ in self.of(*kinds))

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

    def waits_while(self, spans):
        """Seconds in which the trainer waited for a batch and any of these spans (start, end) was under way."""
        merged = union(spans)
        return sum(
            max(0.0, min(b, y) - max(a, x)) for a, b, *_ in self.of("wait") for x, y in merged if x < b and y > a
        )

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
        "compute_cpu_ms": spans.own("compute", part="cpu") * 1e3 / max(1, len(turns) + len(evals)),
        "steps": steps(turns),
        "steps_with_evaluation": steps(np.concatenate([turns, evals])),
    }


def model(spans):
    """The model's work, and what the trainer does itself to take a batch that another process made."""
    taken = sum((b - a) * c.on_cpu for a, b, c, maker, pid, _ in spans.of("wait") if maker and maker != pid)
    return spans.own("compute", part="cpu") + taken


def main():
    folder, logs, begin, end = sys.argv[1:]
    script = next(name for name in os.listdir(folder) if name.endswith(".py"))
    spec = importlib.util.spec_from_file_location("job", os.path.join(folder, script))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    spans = Spans(logs, int(begin), int(end))
    told = describe(spans, float(module.cost(spans)))
    # Healthy variants of a loop are bounded by the model's own work.
    told["compute_share"] = getattr(module, "healthy", model)(spans) / spans.seconds
    if hasattr(module, "idle"):
        # Share of the GPU's idle time, beside the share of the trainer's time.
        told["idle_share"] = module.idle(spans)
    told["named"] = [int(pid) for pid in module.named(spans)] if hasattr(module, "named") else []
    print(json.dumps(told))


if __name__ == "__main__":
    main()
