"""Plain Python reading files in several ways: pyfiles.py TRUTH OS_DIR OPEN_DIR MMAP_DIR THREADS_DIR

OS_DIR is read with os.open/os.read and OPEN_DIR with open().read() (there only opens and bytes are
known: how often open().read() reads is CPython's affair); MMAP_DIR is mapped; THREADS_DIR is read by a
thread pool, once per thread.
"""

import mmap
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import gate

THREADS = 4


def paths(folder):
    return sorted(os.path.join(folder, name) for name in os.listdir(folder))


def main():
    out, os_dir, open_dir, mmap_dir, threads_dir = sys.argv[1:6]
    lists = {folder: paths(folder) for folder in sys.argv[2:6]}
    facts = {folder: {"opens": 0, "reads": 0, "bytes": 0} for folder in sys.argv[2:6]}
    gate.begin()

    def count(folder, opens, reads, size):
        facts[folder]["opens"] += opens
        facts[folder]["reads"] += reads
        facts[folder]["bytes"] += size

    for path in lists[os_dir]:
        count(os_dir, *gate.read_counted(path, 4096)[:3])

    for path in lists[open_dir]:
        with open(path, "rb") as file:
            count(open_dir, 1, 0, len(file.read()))
    facts[open_dir]["reads"] = None

    mapped = 0
    for path in lists[mmap_dir]:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
            mapped += len(view)
            sum(view[::4096])
        count(mmap_dir, 1, 0, 0)

    def one_thread(_):
        return [gate.read_counted(path)[:3] for path in lists[threads_dir]]

    with ThreadPoolExecutor(THREADS) as pool:
        for rows in pool.map(one_thread, range(THREADS)):
            for row in rows:
                count(threads_dir, *row)
    gate.end()
    gate.truth(out, dirs=facts, mapped_bytes=mapped)


main()
