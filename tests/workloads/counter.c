/* To be preloaded: counts what the process asks its allocator for. Not thread-safe in what it counts. */
#include <stddef.h>
#include <stdint.h>

/* The C library's own, under names that nothing can stand in for. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);

#define CLASSES 64
static uint64_t counts[2], sizes[CLASSES];

static void add(size_t bytes)
{
    int class = 0;
    while (bytes >> class)
        class++;
    counts[0]++;
    counts[1] += bytes;
    sizes[class]++;
}

/* Calls so far, and bytes that they asked for; calls that asked for so many bits of bytes. */
void allocations(uint64_t into[2 + CLASSES])
{
    into[0] = counts[0];
    into[1] = counts[1];
    for (int i = 0; i < CLASSES; i++)
        into[2 + i] = sizes[i];
}

void *malloc(size_t bytes)
{
    add(bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    add(count * bytes);
    return __libc_calloc(count, bytes);
}

void *realloc(void *block, size_t bytes)
{
    add(bytes);
    return __libc_realloc(block, bytes);
}
