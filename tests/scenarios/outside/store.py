"""A file system that answers late: `store.py MOUNTPOINT FOLDER FILE`, FILE holding the delays in ms as JSON."""

import errno
import json
import os
import sys
import time

from fusepy import FUSE, FuseOSError, Operations


class Store(Operations):
    def __init__(self, folder, delays):
        self.folder = folder
        self.late = {call: delays.get(call, 0) / 1e3 for call in ("getattr", "open", "read")}

    def _path(self, path):
        return os.path.join(self.folder, path.lstrip("/"))

    def getattr(self, path, fh=None):
        if path != "/" and fh is None:
            time.sleep(self.late["getattr"])
        try:
            stat = os.lstat(self._path(path))
        except OSError:
            raise FuseOSError(errno.ENOENT) from None
        keys = ("st_atime", "st_ctime", "st_gid", "st_mode", "st_mtime", "st_nlink", "st_size", "st_uid")
        return {key: getattr(stat, key) for key in keys}

    def readdir(self, path, fh):
        return [".", "..", *os.listdir(self._path(path))]

    def open(self, path, flags):
        time.sleep(self.late["open"])
        return os.open(self._path(path), os.O_RDONLY)

    def read(self, path, size, offset, fh):
        time.sleep(self.late["read"])
        return os.pread(fh, size, offset)

    def release(self, path, fh):
        os.close(fh)


if __name__ == "__main__":
    mountpoint, folder, delays = sys.argv[1:]
    with open(delays, encoding="utf-8") as file:
        delays = json.load(file)
    FUSE(Store(folder, delays), mountpoint, foreground=True, ro=True, entry_timeout=0, attr_timeout=0)
