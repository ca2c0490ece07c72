"""A training step on a GPU, as a framework does it: copy a batch, launch kernels, wait for the result.

The library has the names of libcudart; in the suite it is a stand-in whose streams are clocks.
"""

import ctypes

from kit import log


class Dim3(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in "xyz"]


class Device:
    def __init__(self, library, batch_bytes):
        self.cuda = ctypes.CDLL(library)
        self.cuda.cudaMemcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self.cuda.cudaLaunchKernel.argtypes = (
            ctypes.c_void_p,
            Dim3,
            Dim3,
            ctypes.c_void_p,
            ctypes.c_size_t,
            ctypes.c_void_p,
        )
        self.cuda.cudaStreamSynchronize.argtypes = (ctypes.c_void_p,)
        self.bytes = int(batch_bytes)
        self.batch = ctypes.create_string_buffer(self.bytes)
        self.memory = ctypes.c_void_p()
        self.cuda.cudaMalloc(ctypes.byref(self.memory), ctypes.c_size_t(self.bytes))

    def copy(self):
        with log.span("copy"):
            self.cuda.cudaMemcpy(self.memory, self.batch, self.bytes, 1)

    def launch(self, microseconds):
        """The stand-in's kernels take as many microseconds as the grid is wide."""
        self.cuda.cudaLaunchKernel(None, Dim3(microseconds, 1, 1), Dim3(1, 1, 1), None, 0, None)

    def wait(self):
        with log.span("sync"):
            self.cuda.cudaStreamSynchronize(None)


def train(job, host_ms, copy_bytes):
    """Work of the CPU lies between the launches, so the device runs dry when there is much of it."""
    from kit import work

    device, host = Device(job.data, copy_bytes), work.Numpy(host_ms)
    kernels = int(job.kernels)
    microseconds = int(job.device_ms * 1000 / kernels)
    end = log.now()
    while True:
        device.copy()
        # One span ends where the next one begins: noting it takes CPU time too, while the device may idle.
        begin, before = log.now(), log.used()
        for _ in range(kernels):
            host(host_ms / kernels)
            device.launch(microseconds)
            launched, used = log.now(), log.used()
            log.put("launch", begin, launched, used - before, tag=microseconds)
            begin, before = launched, used
        device.wait()
        done = log.now()
        log.put("turn", end, done)
        job.turn_done()
        end = done


def idle(spans):
    """When the device ran no kernel, as disjoint times in order.

    A span of `launch` ends with the launch, and its tag is the kernel's length in microseconds. A kernel begins then, or when
    the one before ends.
    """
    times, free = [], 0.0
    for _, launched, _, microseconds, *_ in spans.of("launch"):
        if launched > free:
            times.append((free, launched))
        free = max(free, launched) + microseconds / 1e6
    if spans.seconds > free:
        times.append((free, spans.seconds))
    return times
