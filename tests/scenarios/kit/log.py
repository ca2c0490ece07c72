"""Spans of time, written by each thread into a file of its own in shared memory.

A file is a row of records of five 64-bit integers: kind, start, end (ns of CLOCK_MONOTONIC), CPU time of the thread
within (ns), tag. What a tag means depends on the kind: of a `wait`, the process that made the batch.
"""

import mmap
import os
import struct
import threading
import time
from contextlib import contextmanager

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
    "launch",  # giving work to a device
)
CODE = {name: code for code, name in enumerate(KINDS)}
RECORD = struct.Struct("=5q")
ROOM = 60_000

_here = threading.local()
_folder = None


def open_in(folder):
    """All spans of this process and its children go to files in this folder."""
    global _folder
    _folder = folder


def folder():
    return _folder


def _map():
    pid = os.getpid()
    if getattr(_here, "pid", None) != pid:
        path = os.path.join(_folder, f"{pid}-{threading.get_native_id()}")
        fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(fd, ROOM * RECORD.size)
        _here.map = mmap.mmap(fd, ROOM * RECORD.size)
        os.close(fd)
        _here.pid, _here.next = pid, 0
    return _here.map


def now():
    return time.monotonic_ns()


def cpu():
    return time.thread_time_ns()


def put(kind, start, end, cpu_ns=0, tag=0):
    if _folder is None:
        return
    memory = _map()
    if _here.next < ROOM:
        RECORD.pack_into(memory, _here.next * RECORD.size, CODE[kind], start, end, cpu_ns, tag)
        _here.next += 1


@contextmanager
def span(kind, tag=0):
    start, used = now(), cpu()
    try:
        yield
    finally:
        put(kind, start, now(), cpu() - used, tag)
