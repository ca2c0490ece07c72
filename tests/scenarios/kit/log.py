"""Spans of time, written by each thread into a file of its own in shared memory.

A file is a row of records of six 64-bit integers: kind, start, end (ns of CLOCK_MONOTONIC), time of the thread within on a
CPU and wanting one (ns), tag. What a tag means depends on the kind: of a `wait`, the process that made the batch.
"""

import ctypes
import mmap
import os
import struct
import threading
import time
from contextlib import contextmanager
from typing import NamedTuple

KINDS = (
    "none",  # not written yet
    "turn",  # one turn of the training loop, from asking for the batch to the end of its work
    "eval",  # one turn of an evaluation loop
    "wait",  # the trainer asked for a batch and has it now; tag: process id of the worker, 0: not told
    "compute",  # the trainer's work on a batch
    "open",
    "read",
    "decode",
    "fetch",  # over a socket
    "lock",  # from asking for a lock to having it
    "held",  # from having a lock to giving it back
    "produce",  # making an item that others wait for
    "alloc",  # getting memory, touching it for the first time, giving it back
    "save",  # writing state
    "start",  # starting workers
    "comm",  # waiting for other ranks
    "sync",  # waiting for a device
    "copy",  # blocking copy to a device
    "launch",  # work of the CPU, in the end giving work to a device; tag: how long the device has to do, in microseconds
)
CODE = {name: code for code, name in enumerate(KINDS)}
RECORD = struct.Struct("=6q")
ROOM = 400_000  # pages that were never written take no memory

# Keeps the interpreter's lock: `os.pread` would let it go, and who is put off the CPU by the thread that takes it, before the
# read, would have that time told outside of the span.
_pread = ctypes.PyDLL(None).pread
_pread.argtypes = ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long
_here = threading.local()
_folder = None


class Used(NamedTuple):
    """Nanoseconds of a thread on a CPU, and wanting one: the scheduler's own account of its run queue."""

    on_cpu: int = 0
    wanting: int = 0

    def __sub__(self, before):
        return Used(self.on_cpu - before.on_cpu, self.wanting - before.wanting)


def open_in(folder):
    """All spans of this process and its children go to files in this folder."""
    global _folder
    _folder = folder


def folder():
    return _folder


def _open():
    """Once in each thread, and anew in a forked child."""
    pid = os.getpid()
    if getattr(_here, "pid", None) != pid:
        # A file object: it is closed when the thread ends.
        _here.schedstat = open("/proc/thread-self/schedstat", "rb", buffering=0)
        _here.text = ctypes.create_string_buffer(64)
        _here.map, _here.pid, _here.next = None, pid, 0


def _map():
    _open()
    if _here.map is None:
        path = os.path.join(_folder, f"{_here.pid}-{threading.get_native_id()}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, ROOM * RECORD.size)
        _here.map = mmap.mmap(fd, ROOM * RECORD.size)
        os.close(fd)
    return _here.map


def now():
    return time.monotonic_ns()


def used():
    """What the calling thread used so far (proc_pid_schedstat(5): the second number is its time on run queues)."""
    _open()
    length = _pread(_here.schedstat.fileno(), _here.text, 64, 0)
    return Used(time.thread_time_ns(), int(_here.text.raw[:length].split()[1]))


def put(kind, start, end, spent=Used(), tag=0):
    if _folder is None:
        return
    memory = _map()
    if _here.next < ROOM:
        RECORD.pack_into(memory, _here.next * RECORD.size, CODE[kind], start, end, *spent, tag)
        _here.next += 1


@contextmanager
def span(kind, tag=0):
    start, before = now(), used()
    try:
        yield
    finally:
        put(kind, start, now(), used() - before, tag)
