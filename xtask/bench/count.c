/* Counts what a program asks of its allocator: loaded before glibc (LD_PRELOAD), each allocating call is counted and
 * passed on. `allocations_counted` is for the program itself (dlsym). Built with cc -O2 -shared -fPIC.
 */
#include <errno.h>
#include <stddef.h>
#include <stdint.h>

/* glibc's own names of what is hidden behind the ones below. */
void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static uint64_t counted;

static inline void count(void) { __atomic_add_fetch(&counted, 1, __ATOMIC_RELAXED); }

uint64_t allocations_counted(void) { return __atomic_load_n(&counted, __ATOMIC_RELAXED); }

void *malloc(size_t size)
{
    count();
    return __libc_malloc(size);
}

void *calloc(size_t members, size_t size)
{
    count();
    return __libc_calloc(members, size);
}

void *realloc(void *block, size_t size)
{
    count();
    return __libc_realloc(block, size);
}

void *memalign(size_t alignment, size_t size)
{
    count();
    return __libc_memalign(alignment, size);
}

void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }

int posix_memalign(void **block, size_t alignment, size_t size)
{
    if (alignment % sizeof(void *) || alignment & (alignment - 1) || alignment == 0)
        return EINVAL;
    void *made = memalign(alignment, size);
    if (!made)
        return ENOMEM;
    *block = made;
    return 0;
}
