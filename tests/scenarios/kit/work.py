"""Real work that takes a stated CPU time, calibrated when the job starts.

Calibration counts CPU time of the thread, so that neighbours and quotas do not change how much work a step is. The
run without the fault takes it over from the run with it: both do the same work, however fast the machine is just then.
"""

import time
import zlib

import numpy as np
import torch

from kit import job

torch.set_num_threads(1)


class _Repeat:
    """Repeats a unit of work of some ten microseconds. Picklable: a spawned worker takes the count over."""

    def __init__(self, ms):
        self._make()
        self.units_per_ms = job.calibrated(type(self).__name__, self._calibrate)
        self.ms = ms

    def _calibrate(self, for_ms=40):
        self._unit()
        best = 0.0
        for _ in range(3):
            start, units = time.thread_time(), 0
            while time.thread_time() - start < for_ms / 3000:
                for _ in range(8):
                    self._unit()
                units += 8
            best = max(best, units / ((time.thread_time() - start) * 1e3))
        return best

    def __call__(self, ms=None):
        for _ in range(max(1, round(self.units_per_ms * (self.ms if ms is None else ms)))):
            self._unit()

    def __getstate__(self):
        return {"units_per_ms": self.units_per_ms, "ms": self.ms}

    def __setstate__(self, state):
        self._make()
        self.__dict__.update(state)


class Torch(_Repeat):
    """Matrix products, as a model's layers."""

    def _make(self):
        self._a = torch.rand(64, 64)
        self._b = torch.empty(64, 64)

    def _unit(self):
        torch.mm(self._a, self._a, out=self._b)


class Numpy(_Repeat):
    """Sorting and arithmetic on arrays that are reused; gives the GIL up where numpy does."""

    def _make(self):
        self._a = np.random.default_rng(1).random(2048)
        self._b = np.empty_like(self._a)

    def _unit(self):
        np.copyto(self._b, self._a)
        self._b.sort()


class Product(_Repeat):
    """One product of matrices of numpy: the GIL is given up for nearly all of its time."""

    def _make(self):
        self._a = np.random.default_rng(2).random((192, 192), dtype=np.float32)
        self._b = np.empty_like(self._a)

    def _unit(self):
        np.matmul(self._a, self._a, out=self._b)


class Inflate(_Repeat):
    """Decompression and conversion, as decoding a picture. zlib gives the GIL up."""

    def _make(self):
        raw = (np.arange(16384) % 251).astype(np.uint8) ^ np.random.default_rng(3).integers(0, 8, 16384, np.uint8)
        self._packed = zlib.compress(raw.tobytes(), 1)
        self._out = np.empty(16384, np.float32)

    def _unit(self):
        pixels = np.frombuffer(zlib.decompress(self._packed), np.uint8)
        np.multiply(pixels, 1 / 255, out=self._out)


class Python(_Repeat):
    """Byte by byte in pure Python: the GIL is held all the time."""

    def _make(self):
        self._bytes = bytes(range(256))

    def _unit(self):
        total = 0
        for byte in self._bytes:
            total = (total * 31 + byte) & 0xFFFF
        return total
