"""A training loop on the fake GPU from Python: fake_loop.py LIBRARY STEPS LAUNCHES KERNEL_US COPY_BYTES HOST_MS

Prints one JSON line: what it did and how long each part took (see fake_gpu.h for the library).
"""

import ctypes
import json
import sys
import time


def main():
    library, steps, launches, kernel_us, copy_bytes, host_ms = sys.argv[1], *map(int, sys.argv[2:7])
    cuda = ctypes.CDLL(library)
    cuda.fake_launch.argtypes = [ctypes.c_double]
    cuda.cudaMemcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    device = ctypes.c_void_p()
    cuda.cudaMalloc(ctypes.byref(device), ctypes.c_size_t(copy_bytes or 1))
    data = ctypes.create_string_buffer(copy_bytes or 1)
    spent = {"host": 0.0, "copy": 0.0, "wait": 0.0}
    begun = time.monotonic()
    for _ in range(steps):
        a = time.monotonic()
        while time.monotonic() - a < host_ms / 1e3:
            pass
        b = time.monotonic()
        cuda.cudaMemcpy(device, data, copy_bytes, 1)
        c = time.monotonic()
        for _ in range(launches):
            cuda.fake_launch(kernel_us)
        d = time.monotonic()
        cuda.cudaDeviceSynchronize()
        spent["host"] += b - a
        spent["copy"] += c - b
        spent["wait"] += time.monotonic() - d
    print(json.dumps({"steps": steps, "seconds": time.monotonic() - begun, "spent": spent}))


main()
