/* Stands in for a framework's allocator of device memory: one function with such a name, which spends CPU time. */
#include <stdint.h>

#define ALLOCATE "_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator6mallocEmP11CUstream_st"

__attribute__((noinline, visibility("default"))) uint64_t allocate(uint64_t seed) __asm__(ALLOCATE);

uint64_t allocate(uint64_t seed)
{
    for (int i = 0; i < 2000000; i++)
        seed ^= seed << 13, seed ^= seed >> 7, seed ^= seed << 17;
    return seed;
}
