"""Looks at every file of a folder before its opener may have it: `scan.py FOLDER FILE`, as a virus scanner does.

FILE holds late_ms as JSON: how long a look takes. Uses fanotify's permission events. Prints `ready`.
"""

import ctypes
import json
import os
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

FAN_CLASS_CONTENT, FAN_CLOEXEC = 0x04, 0x01
FAN_MARK_ADD, FAN_OPEN_PERM, FAN_EVENT_ON_CHILD, FAN_ALLOW = 0x01, 0x00010000, 0x08000000, 0x01
AT_FDCWD = -100
EVENT = struct.Struct("=IBBHQii")


def main():
    folder, settings = sys.argv[1:]
    with open(settings, encoding="utf-8") as file:
        late = json.load(file)["late_ms"] / 1e3
    libc = ctypes.CDLL(None, use_errno=True)
    group = libc.fanotify_init(FAN_CLASS_CONTENT | FAN_CLOEXEC, os.O_RDONLY)
    libc.fanotify_mark.argtypes = (ctypes.c_int, ctypes.c_uint, ctypes.c_uint64, ctypes.c_int, ctypes.c_char_p)
    if group < 0 or libc.fanotify_mark(
        group, FAN_MARK_ADD, FAN_OPEN_PERM | FAN_EVENT_ON_CHILD, AT_FDCWD, folder.encode()
    ):
        raise OSError(ctypes.get_errno(), "fanotify")
    print("ready", flush=True)

    def look(fd):
        time.sleep(late)
        os.write(group, struct.pack("=iI", fd, FAN_ALLOW))
        os.close(fd)

    with ThreadPoolExecutor(8) as looks:
        while True:
            events = os.read(group, 8192)
            while events:
                length, _, _, _, _, fd, _ = EVENT.unpack_from(events)
                events = events[length:]
                if fd >= 0:
                    looks.submit(look, fd)


if __name__ == "__main__":
    main()
