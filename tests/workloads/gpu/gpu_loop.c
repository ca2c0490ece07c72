/* A training loop on the fake GPU: gpu_loop TRUTH LIBRARY [options], with the gates of ../wl.h
 *   -s STEPS (50)     -n LAUNCHES per step (4)   -k KERNEL_US each (1000)   -c COPY_BYTES per step (100000)
 *   -h HOST_US of computing per step (0)         -y sync|event|device|none (sync)
 *   -l MS   load the library only so long after the start gate, then wait -w MS (1500) before the first call
 *   -f      fork a child after loading, which makes the calls in the parent's place
 *   -d      use libcuda's names (LIBRARY is libcuda.so.1)
 *   -z N    N calls of cudaStreamSynchronize back to back each step (a hot loop)
 *   -m PATH each step also allocates and frees, directly through this driver, and managed and in rows through LIBRARY
 *   -x      end in the middle of a wait of 60 s, by _exit from another thread
 * Counts and times each call itself.
 */
#include "../wl.h"
#include <dlfcn.h>

enum { SYNC, EVENT, DEVICE, COPY, COPY_ASYNC, ALLOC, FREE, HOST_ALLOC, HOST_FREE, LAUNCH,
       MANAGED, PITCH, CU_ALLOC, CU_MANAGED, CU_CREATE, CU_FREE, CU_RELEASE, CALLS };
static const char *runtime_names[CALLS] = {
    "cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize", "cudaMemcpy", "cudaMemcpyAsync",
    "cudaMalloc", "cudaFree", "cudaHostAlloc", "cudaFreeHost", "cudaLaunchKernel",
    "cudaMallocManaged", "cudaMallocPitch"};
static const char *direct_names[CALLS] = {
    [CU_ALLOC] = "cuMemAlloc_v2", [CU_MANAGED] = "cuMemAllocManaged", [CU_CREATE] = "cuMemCreate",
    [CU_FREE] = "cuMemFree_v2", [CU_RELEASE] = "cuMemRelease"};
static const char *driver_names[CALLS] = {
    "cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize", "cuMemcpyHtoD_v2", "cuMemcpyHtoDAsync_v2",
    "cuMemAlloc_v2", "cuMemFree_v2", NULL, NULL, "cuLaunchKernel"};
static const char **names = runtime_names;
static void *calls[CALLS];
static struct count counts[CALLS];
typedef int (*f1)(void *);
typedef int (*f3)(void *, const void *, size_t);
typedef int (*f4)(void *, const void *, size_t, int);
typedef int (*f5)(void *, const void *, size_t, int, void *);
typedef int (*alloc)(void **, size_t);
typedef int (*alloc3)(void **, size_t, unsigned);
typedef int (*pitched)(void **, size_t *, size_t, size_t);
typedef int (*create)(void **, size_t, const void *, unsigned long long);
struct dim { unsigned x, y, z; };
typedef int (*kernel)(const void *, struct dim, struct dim, void **, size_t, void *);
typedef int (*cukernel)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);

#define TIMED(which, size, call)                       \
    do {                                               \
        double begun = now_s();                        \
        int rc = call;                                 \
        counts[which].seconds += now_s() - begun;      \
        counts[which].calls++;                         \
        counts[which].bytes += size;                   \
        counts[which].errors += rc != 0;               \
    } while (0)

static void load(const char *path, const char **names)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library) {
        fprintf(stderr, "workload: %s\n", dlerror());
        exit(97);
    }
    for (int i = 0; i < CALLS; i++)
        if (names[i])
            calls[i] = dlsym(library, names[i]);
}

/* Allocates in every way that passes the runtime by, and in some that do not. */
static void allocate_all(size_t bytes)
{
    void *p;
    size_t pitch;
    TIMED(MANAGED, bytes, ((alloc3)calls[MANAGED])(&p, bytes, 1));
    TIMED(FREE, 0, ((f1)calls[FREE])(p));
    TIMED(PITCH, 300 * 10, ((pitched)calls[PITCH])(&p, &pitch, 300, 10));
    TIMED(FREE, 0, ((f1)calls[FREE])(p));
    TIMED(ALLOC, bytes, ((alloc)calls[ALLOC])(&p, bytes));
    TIMED(FREE, 0, ((f1)calls[FREE])(p));
    TIMED(CU_ALLOC, bytes, ((alloc)calls[CU_ALLOC])(&p, bytes));
    TIMED(CU_FREE, 0, ((f1)calls[CU_FREE])(p));
    TIMED(CU_MANAGED, bytes, ((alloc3)calls[CU_MANAGED])(&p, bytes, 1));
    TIMED(CU_FREE, 0, ((f1)calls[CU_FREE])(p));
    TIMED(CU_CREATE, bytes, ((create)calls[CU_CREATE])(&p, bytes, NULL, 0));
    TIMED(CU_RELEASE, 0, ((f1)calls[CU_RELEASE])(p));
}

static void *ender(void *unused)
{
    sleep_ms(500);
    _exit(0);
}

int main(int argc, char **argv)
{
    int steps = 50, launches = 4, kernel_us = 1000, host_us = 0, late = -1, wait = 1500, forks = 0, driver = 0, hot = 0, dies = 0, option;
    size_t copy = 100000;
    const char *sync = "sync", *truth = argv[1], *library = argv[2], *direct = NULL;
    optind = 3;
    while ((option = getopt(argc, argv, "s:n:k:c:h:y:l:w:z:m:fdx")) != -1)
        switch (option) {
        case 's': steps = atoi(optarg); break;
        case 'n': launches = atoi(optarg); break;
        case 'k': kernel_us = atoi(optarg); break;
        case 'c': copy = strtoull(optarg, NULL, 0); break;
        case 'h': host_us = atoi(optarg); break;
        case 'y': sync = optarg; break;
        case 'l': late = atoi(optarg); break;
        case 'w': wait = atoi(optarg); break;
        case 'z': hot = atoi(optarg); break;
        case 'm': direct = optarg; break;
        case 'f': forks = 1; break;
        case 'd': driver = 1; break;
        case 'x': dies = 1; break;
        default: return 96;
        }
    if (driver)
        names = driver_names;
    if (late < 0)
        load(library, names);
    if (direct)
        load(direct, direct_names);
    struct count *shared = shared_memory(sizeof counts);
    char *data = malloc(copy + 1);
    memset(data, 1, copy + 1);
    gate_begin();
    if (late >= 0) {
        sleep_ms(late);
        load(library, names);
        sleep_ms(wait);
    }
    int status = 0;
    pid_t child = forks ? fork() : 0;
    if (child) {
        waitpid(child, &status, 0);
        memcpy(counts, shared, sizeof counts);
        gate_end();
    } else {
        void *device = NULL, *host = NULL;
        double begun = now_s(), cpu = thread_cpu_s();
        TIMED(ALLOC, copy + 1, ((alloc)calls[ALLOC])(&device, copy + 1));
        if (calls[HOST_ALLOC])
            TIMED(HOST_ALLOC, 4096, ((alloc3)calls[HOST_ALLOC])(&host, 4096, 0));
        if (dies) {
            pthread_t thread;
            pthread_create(&thread, NULL, ender, NULL);
            struct dim minute = {60000000, 1, 1}, one = {1, 1, 1};
            ((kernel)calls[LAUNCH])(NULL, minute, one, NULL, 0, NULL);
            ((f1)calls[SYNC])(NULL);
        }
        for (int step = 0; step < steps; step++) {
            if (direct)
                allocate_all(copy + step);
            for (double until = now_s() + host_us / 1e6; now_s() < until;) {
            }
            if (driver)
                TIMED(COPY, copy, ((f3)calls[COPY])(device, data, copy));
            else
                TIMED(COPY, copy, ((f4)calls[COPY])(device, data, copy, 1));
            if (!driver)
                TIMED(COPY_ASYNC, 1000, ((f5)calls[COPY_ASYNC])(device, data, copy < 1000 ? copy : 1000, 1, NULL));
            for (int i = 0; i < launches; i++) {
                struct dim grid = {kernel_us, 1, 1}, one = {1, 1, 1};
                if (driver)
                    TIMED(LAUNCH, 0, ((cukernel)calls[LAUNCH])(NULL, kernel_us, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
                else
                    TIMED(LAUNCH, 0, ((kernel)calls[LAUNCH])(NULL, grid, one, NULL, 0, NULL));
            }
            if (!strcmp(sync, "sync"))
                TIMED(SYNC, 0, ((f1)calls[SYNC])(NULL));
            else if (!strcmp(sync, "event"))
                TIMED(EVENT, 0, ((f1)calls[EVENT])(NULL));
            else if (!strcmp(sync, "device"))
                TIMED(DEVICE, 0, ((int (*)(void))calls[DEVICE])());
            for (int i = 0; i < hot; i++)
                TIMED(SYNC, 0, ((f1)calls[SYNC])(NULL));
        }
        if (calls[HOST_FREE])
            TIMED(HOST_FREE, 0, ((f1)calls[HOST_FREE])(host));
        TIMED(FREE, 0, ((f1)calls[FREE])(device));
        if (forks) {
            memcpy(shared, counts, sizeof counts);
            _exit(0);
        }
        double took = now_s() - begun;
        cpu = thread_cpu_s() - cpu;
        gate_end();
        truth_begin();
        truth_num("seconds", took);
        truth_num("cpu_seconds", cpu);
        truth_int("steps", steps);
        truth_open("calls", '{');
        for (int i = 0; i < CALLS; i++)
            if (names[i])
                truth_count(names[i], &counts[i]);
            else if (direct && direct_names[i])
                truth_count(direct_names[i], &counts[i]);
        truth_close('}');
        truth_end(truth);
        return 0;
    }
    truth_begin();
    truth_int("child", child);
    truth_int("steps", steps);
    truth_open("calls", '{');
    for (int i = 0; i < CALLS; i++)
        if (names[i])
            truth_count(names[i], &counts[i]);
    truth_close('}');
    truth_end(truth);
    return 0;
}
