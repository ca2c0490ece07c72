/* What the fake GPU libraries share. They stand in for a GPU in tests, and only there.
 *
 * Build:   sh build.sh DIR    gives DIR/libcudart.so.12, DIR/libcuda.so.1, DIR/libnvidia-ml.so.1, DIR/gpu_loop
 *
 * The job's side, libcudart.so.12 and libcuda.so.1 (from Python: ctypes.CDLL(DIR + "/libcudart.so.12")).
 * A stream is a clock: a launch adds its length to it, a wait waits until it is reached. A launch's length is
 * `gridDim.x` microseconds; `fake_launch(double us)` does the same from ctypes. Environment of the job:
 *   FAKE_GPU=FILE         what ran when, and who has how much memory, for the other side (below); made when missing
 *   FAKE_CUDA_WAIT=spin   waits spin on the CPU; else they sleep
 *   FAKE_CUDA_GBPS=10     speed of copies, in GB/s; host memory is really copied
 *   FAKE_CUDA_NEST=1      libcudart goes through libcuda.so.1 of its own folder, as a program would see with both
 *
 * The driver's side, libnvidia-ml.so.1 (trainprof --gpu DIR/libnvidia-ml.so.1). What it answers stands in the text
 * file that FAKE_NVML names in trainprof's environment, else in fake_nvml.state beside the library. It is read anew at
 * each call, so a test changes the GPU by replacing the file. One statement a line, what is not said has a default:
 *   devices N | driver TEXT | period_ms N (of buffered samples; 0: no buffer, so that only polls work)
 *   init_error CODE | hang CALL | slow CALL MS | crash CALL   (CALL: name of an NVML function, or *)
 *   gpm 0|1 | events 0|1
 *   device I name TEXT | uuid TEXT | util PERCENT | busy FILE (the job's FAKE_GPU) | wave ON_MS OFF_MS
 *   device I memory USED TOTAL | power W | clocks SM MEM | throttle MASK | temperature C | pcie TX RX (KB/s)
 *   device I ecc N | xid N (comes once for each change) | lost 0|1 | process PID MEMORY PERCENT
 *   device I slice J UUID INSTANCE (MIG: the device has slices)
 * With `busy`, processes in FILE are processes on the device too, and utilisation is what launches made of it.
 */
#ifndef FAKE_GPU_H
#define FAKE_GPU_H
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define SPANS 65536
#define OWNERS 64

/* The file that FAKE_GPU names. */
struct gpu_file {
    uint64_t count; /* spans so far; the last SPANS of them are kept */
    struct { uint32_t pid, pad; uint64_t bytes; } owner[OWNERS];
    struct { uint64_t from_us, to_us; } span[SPANS]; /* CLOCK_REALTIME */
};

static inline uint64_t clock_us(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return t.tv_sec * 1000000ull + t.tv_nsec / 1000;
}

static inline struct gpu_file *gpu_file(const char *path, int create)
{
    int fd = open(path, O_RDWR | (create ? O_CREAT : 0), 0666);
    if (fd < 0)
        return NULL;
    if (create && ftruncate(fd, sizeof(struct gpu_file)))
        return NULL;
    struct gpu_file *file = mmap(NULL, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    return file == MAP_FAILED ? NULL : file;
}
#endif
