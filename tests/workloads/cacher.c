/* Spends CPU time in a library's allocator of device memory, and twice as much beside it: cacher TRUTH SECONDS LIBRARY
 * Each way's time is the thread's own CPU clock around it.
 */
#include "wl.h"
#include <dlfcn.h>

#define ALLOCATE "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator6mallocEmP11CUstream_st"

__attribute__((noinline)) static uint64_t spend_arithmetic(uint64_t x)
{
    for (int i = 0; i < 4000000; i++)
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return x;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    double seconds = atof(argv[2]), arithmetic = 0, cached = 0;
    void *library = dlopen(argv[3], RTLD_NOW);
    uint64_t (*allocate)(uint64_t) = library ? (uint64_t (*)(uint64_t))dlsym(library, ALLOCATE) : NULL;
    if (!allocate) {
        fprintf(stderr, "workload: %s\n", dlerror());
        return 97;
    }
    volatile uint64_t result = 88172645463325252ull;
    gate_begin();
    while (arithmetic + cached < seconds) {
        double begin = thread_cpu_s();
        result = allocate(result);
        double between = thread_cpu_s();
        result = spend_arithmetic(result);
        cached += between - begin;
        arithmetic += thread_cpu_s() - between;
    }
    gate_end();
    truth_begin();
    truth_int("tid", tid_now());
    truth_open("spent_s", '{');
    truth_num("arithmetic", arithmetic);
    truth_num("cached", cached);
    truth_close('}');
    truth_end(argv[1]);
    return 0;
}
