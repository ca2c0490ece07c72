"""A job's settings, and the moment from which it may be watched."""

import fcntl
import json
import mmap
import os
import random
import struct
import tempfile
from multiprocessing import synchronize

from kit import log


_random_names = tempfile._RandomNameSequence()


def _name_semaphores(begin):
    """Lets semaphores of spawned workers begin so: the runner removes them, since a killed job cannot."""
    synchronize.SemLock._make_name = staticmethod(lambda: f"/{begin}-{next(_random_names)}")


_units = {}
_log = None


def calibrated(name, calibrate):
    """Units of a kind of work in a millisecond: as told, or as measured by the first process of the job that asks.

    Others take it over, and the runner reads it: the work is the same in all of them, and in the job without the fault.
    """
    if name not in _units and _log is None:
        _units[name] = calibrate()
    if name not in _units:
        with open(os.path.join(_log, f"units.{name}"), "a+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            told = file.read()
            _units[name] = float(told) if told else calibrate()
            if not told:
                file.write(str(_units[name]))
    return _units[name]


class Job:
    """Read from `job.json` in the job's folder.

    fault: whether the injected cause is there. data: folder, file or address of the data set. Everything else is a
    number or word of the scenario, by name.
    """

    def __init__(self, folder):
        with open(os.path.join(folder, "job.json"), encoding="utf-8") as file:
            self._settings = json.load(file)
        self.folder = folder
        self.fault = self._settings["fault"]
        self.data = self._settings["data"]
        self._warm_turns = self._settings.get("warm_turns", 8)
        self.seed = self._settings["seed"]
        self._turns = 0
        self._counter = None
        self.random = random.Random(self._settings["seed"])
        log.open_in(self._settings["log"])
        _name_semaphores(os.path.basename(self._settings["log"]))
        global _log
        _log = self._settings["log"]
        _units.update(self._settings["units"])

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._settings["params"][name]

    def __getstate__(self):
        """What a spawned worker needs."""
        return {"folder": self.folder}

    def __setstate__(self, state):
        self.__init__(state["folder"])

    def turn_done(self):
        """Counts turns where the runner can see them, and says once that the loop is warm."""
        if self._counter is None:
            path = os.path.join(self._settings["log"], "turns")
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(fd, 8)
            self._counter = mmap.mmap(fd, 8)
            os.close(fd)
        self._turns += 1
        struct.pack_into("=q", self._counter, 0, self._turns)
        if self._turns == self._warm_turns:
            print("ready", flush=True)


def here():
    """The job whose main script this is."""
    import __main__

    return Job(os.path.dirname(os.path.abspath(__main__.__file__)))
