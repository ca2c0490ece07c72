/* libcuda.so.1 and, with -DRUNTIME, libcudart.so.12: see fake_gpu.h. One clock per stream, per process. */
#include "fake_gpu.h"

typedef int result;
typedef struct { unsigned x, y, z; } dim3;
#define EXPORT __attribute__((visibility("default"), noinline))
#define STREAMS 64

struct stream { uint64_t until_us; };
static struct stream streams[STREAMS];
static struct gpu_file *file;
static int looked, spin;
static double bytes_per_us = 10e3;

static void setup(void)
{
    if (looked)
        return;
    const char *path = getenv("FAKE_GPU"), *wait = getenv("FAKE_CUDA_WAIT"), *speed = getenv("FAKE_CUDA_GBPS");
    spin = wait && !strcmp(wait, "spin");
    if (speed)
        bytes_per_us = atof(speed) * 1e3;
    if (path)
        file = gpu_file(path, 1);
    looked = 1;
}

static void own(int64_t bytes)
{
    setup();
    if (!file)
        return;
    uint32_t me = getpid();
    for (int i = 0; i < OWNERS; i++) {
        uint32_t nobody = 0;
        if (__atomic_load_n(&file->owner[i].pid, __ATOMIC_SEQ_CST) == me
            || __atomic_compare_exchange_n(&file->owner[i].pid, &nobody, me, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
            __atomic_fetch_add(&file->owner[i].bytes, bytes, __ATOMIC_SEQ_CST);
            return;
        }
    }
}

static struct stream *stream_of(void *handle)
{
    struct stream *s = handle;
    return s >= streams && s < streams + STREAMS ? s : streams;
}

static void launch(struct stream *s, double us)
{
    setup();
    uint64_t now = clock_us(CLOCK_MONOTONIC), from = s->until_us > now ? s->until_us : now;
    s->until_us = from + (uint64_t)us;
    if (file) {
        uint64_t real = clock_us(CLOCK_REALTIME) - now, n = __atomic_fetch_add(&file->count, 1, __ATOMIC_SEQ_CST) % SPANS;
        file->span[n].from_us = from + real;
        file->span[n].to_us = s->until_us + real;
    }
}

static result wait_until(uint64_t until_us)
{
    setup();
    if (spin) {
        while (clock_us(CLOCK_MONOTONIC) < until_us) {
        }
    } else if (clock_us(CLOCK_MONOTONIC) < until_us) {
        struct timespec t = {until_us / 1000000, until_us % 1000000 * 1000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) {
        }
    }
    return 0;
}

static result wait_all(void)
{
    uint64_t until = 0;
    for (int i = 0; i < STREAMS; i++)
        until = streams[i].until_us > until ? streams[i].until_us : until;
    return wait_until(until);
}

/* Waits for the stream, then takes as long as the bytes need. */
static result copy(void *to, const void *from, size_t bytes, struct stream *s)
{
    setup();
    wait_until(s->until_us);
    uint64_t end = clock_us(CLOCK_MONOTONIC) + (uint64_t)(bytes / bytes_per_us);
    if (to && from)
        memmove(to, from, bytes);
    return wait_until(end);
}

static result copy_async(void *to, const void *from, size_t bytes, struct stream *s)
{
    setup();
    uint64_t now = clock_us(CLOCK_MONOTONIC);
    s->until_us = (s->until_us > now ? s->until_us : now) + (uint64_t)(bytes / bytes_per_us);
    if (to && from)
        memmove(to, from, bytes);
    return 0;
}

static result allocate(void **out, size_t bytes)
{
    uint64_t *p = malloc(bytes + 16);
    if (!p)
        return 2;
    *p = bytes;
    *out = p + 2;
    own((int64_t)bytes);
    return 0;
}

static result give_back(void *p)
{
    if (!p)
        return 0;
    uint64_t *real = (uint64_t *)p - 2;
    own(-(int64_t)*real);
    free(real);
    return 0;
}

static result new_stream(void **out)
{
    static int next;
    *out = &streams[1 + __atomic_fetch_add(&next, 1, __ATOMIC_SEQ_CST) % (STREAMS - 1)];
    return 0;
}

#ifdef RUNTIME
/* The same call of libcuda, where FAKE_CUDA_NEST asks to go through it. */
static void *inner(const char *name)
{
    static void *library;
    static int tried;
    if (!tried) {
        Dl_info info;
        char path[4096];
        const char *nest = getenv("FAKE_CUDA_NEST");
        tried = 1;
        if (nest && *nest == '1' && dladdr((void *)inner, &info)) {
            snprintf(path, sizeof path, "%.*slibcuda.so.1", (int)(strrchr(info.dli_fname, '/') + 1 - info.dli_fname), info.dli_fname);
            library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        }
    }
    return library ? dlsym(library, name) : NULL;
}

EXPORT result cudaStreamCreate(void **out) { return new_stream(out); }
EXPORT result cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared, void *stream)
{
    launch(stream_of(stream), grid.x);
    return 0;
}
EXPORT result fake_launch(double us) { launch(streams, us); return 0; }
EXPORT result cudaStreamSynchronize(void *stream)
{
    result (*cu)(uint64_t) = (result (*)(uint64_t))inner("fake_wait_until");
    struct stream *s = stream_of(stream);
    if (cu) {
        result (*sync)(void *) = (result (*)(void *))inner("cuStreamSynchronize");
        sync(NULL); /* nothing is queued there: nested, and short */
        return cu(s->until_us);
    }
    return wait_until(s->until_us);
}
EXPORT result cudaStreamSynchronize_ptsz(void *stream) { result r = wait_until(stream_of(stream)->until_us); return r; }
EXPORT result cudaDeviceSynchronize(void) { return wait_all(); }
EXPORT result cudaEventSynchronize(void *event) { result r = wait_all(); return r + (event == (void *)1); }
EXPORT result cudaMemcpy(void *to, const void *from, size_t bytes, int kind) { return copy(to, from, bytes, streams); }
EXPORT result cudaMemcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width, size_t height, int kind)
{
    return copy(NULL, NULL, width * height, streams);
}
EXPORT result cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, void *stream)
{
    return copy_async(to, from, bytes, stream_of(stream));
}
EXPORT result cudaMalloc(void **out, size_t bytes)
{
    result (*cu)(void **, size_t) = (result (*)(void **, size_t))inner("cuMemAlloc_v2");
    return cu ? cu(out, bytes) : allocate(out, bytes);
}
EXPORT result cudaMallocManaged(void **out, size_t bytes, unsigned flags)
{
    result (*cu)(void **, size_t, unsigned) = (result (*)(void **, size_t, unsigned))inner("cuMemAllocManaged");
    return cu ? cu(out, bytes, flags) : allocate(out, bytes);
}
EXPORT result cudaMallocPitch(void **out, size_t *pitch, size_t width, size_t height)
{
    *pitch = (width + 511) / 512 * 512;
    return allocate(out, *pitch * height);
}
EXPORT result cudaFree(void *p)
{
    result (*cu)(void *) = (result (*)(void *))inner("cuMemFree_v2");
    return cu ? cu(p) : give_back(p);
}
EXPORT result cudaHostAlloc(void **out, size_t bytes, unsigned flags) { *out = malloc(bytes); return !*out; }
EXPORT result cudaMallocHost(void **out, size_t bytes) { *out = malloc(bytes); return !*out; }
EXPORT result cudaFreeHost(void *p) { free(p); return 0; }
EXPORT result cudaMallocAsync(void **out, size_t bytes, void *stream) { return allocate(out, bytes); }
EXPORT result cudaFreeAsync(void *p, void *stream) { return give_back(p); }
#else
EXPORT result fake_wait_until(uint64_t until_us) { return wait_until(until_us); }
EXPORT result cuStreamCreate(void **out, unsigned flags) { return new_stream(out); }
EXPORT result cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, void *stream, void **params, void **extra)
{
    launch(stream_of(stream), gx);
    return 0;
}
EXPORT result cuStreamSynchronize(void *stream) { return wait_until(stream_of(stream)->until_us); }
EXPORT result cuCtxSynchronize(void) { return wait_all(); }
EXPORT result cuEventSynchronize(void *event) { result r = wait_all(); return r + (event == (void *)1); }
EXPORT result cuMemcpyHtoD_v2(void *to, const void *from, size_t bytes) { return copy(to, from, bytes, streams); }
EXPORT result cuMemcpyDtoH_v2(void *to, void *from, size_t bytes) { result r = copy(to, from, bytes, streams); return r; }
EXPORT result cuMemcpyHtoDAsync_v2(void *to, const void *from, size_t bytes, void *stream)
{
    return copy_async(to, from, bytes, stream_of(stream));
}
EXPORT result cuMemAlloc_v2(void **out, size_t bytes) { return allocate(out, bytes); }
EXPORT result cuMemAllocManaged(void **out, size_t bytes, unsigned flags) { result r = allocate(out, bytes); return r + (flags == 77); }
EXPORT result cuMemCreate(void **handle, size_t bytes, const void *properties, unsigned long long flags)
{
    result r = allocate(handle, bytes);
    return r + (flags == 77);
}
EXPORT result cuMemRelease(void *handle) { result r = give_back(handle); return r; }
EXPORT result cuMemFree_v2(void *p) { return give_back(p); }
#endif
