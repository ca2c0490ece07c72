/* To be preloaded: counts what the process asks its allocator for. Not thread-safe in what it counts. */
#include <stddef.h>
#include <stdint.h>

/* The C library's own, under names that nothing can stand in for. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);

static uint64_t counts[2];

static void add(size_t bytes)
{
    counts[0]++;
    counts[1] += bytes;
}

/* Calls so far, and bytes that they asked for. */
void allocations(uint64_t into[2])
{
    into[0] = counts[0];
    into[1] = counts[1];
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
