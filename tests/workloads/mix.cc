/* Calls every function of an allocator, each from a function of its own, and counts what it asked for.
 *
 * mix TRUTH SECONDS WORK [-o WAY] [-k ROUNDS] [-x]
 * Each round calls every way once, in its own size, and WAY (malloc) four times more, with some arithmetic of WORK turns
 * between any two. What `malloc`, `posix_memalign` and `operator new` gave lives for ROUNDS rounds (64), all else is given
 * back at once. -x: one call of `operator new` in a round asks for more than there is, and what it throws is caught.
 */
#include "wl.h"
#include <dlfcn.h>
#include <malloc.h>
#include <new>

#define WAY(name) extern "C" __attribute__((noinline)) void name(void)
#define KEPT 4096

enum {
    MALLOC,
    CALLOC,
    REALLOC,
    POSIX_MEMALIGN,
    ALIGNED_ALLOC,
    VALLOC,
    PVALLOC,
    NEW,
    NEW_ARRAY,
    ALIGNED_NEW,
    NOTHROW_ALIGNED_NEW,
    FUNCTIONS
};
static const char *const names[FUNCTIONS] = {
    "malloc", "calloc",       "realloc",        "posix_memalign", "aligned_alloc",      "valloc",
    "pvalloc", "operator new", "operator new[]", "aligned new",    "nothrow aligned new"};

static uint64_t calls[FUNCTIONS], bytes[FUNCTIONS], quick_bytes[FUNCTIONS], thrown, rounds;
static unsigned rounds_kept = 64;
static volatile unsigned sink;

struct ring {
    void *blocks[KEPT];
    unsigned next;
};
static struct ring rings[FUNCTIONS];

/* The compiler does not know where a block came from, nor that nobody reads it. */
template <typename T> static inline T *touched(T *block)
{
    if (!block)
        die("an allocator");
    *(volatile char *)block = 1;
    __asm__ volatile("" : "+r"(block) : : "memory");
    return block;
}

static inline void count(int function, size_t size, bool quick)
{
    calls[function]++;
    bytes[function] += size;
    if (quick)
        quick_bytes[function] += size;
}

/* Keeps a block, and gives what it takes the place of. */
static inline void *exchange(int function, void *block)
{
    struct ring *ring = &rings[function];
    void **slot = &ring->blocks[ring->next++ % rounds_kept];
    void *old = *slot;
    *slot = block;
    return old;
}

WAY(by_malloc)
{
    free(exchange(MALLOC, touched(malloc(72))));
    count(MALLOC, 72, false);
}

WAY(by_calloc)
{
    free(touched(calloc(10, 24)));
    count(CALLOC, 240, true);
}

WAY(by_realloc)
{
    void *block = touched(malloc(40));
    count(MALLOC, 40, true);
    free(touched(realloc(block, 1500)));
    count(REALLOC, 1500, true);
}

WAY(by_posix_memalign)
{
    void *block;
    if (posix_memalign(&block, 64, 4800))
        die("posix_memalign");
    free(exchange(POSIX_MEMALIGN, touched(block)));
    count(POSIX_MEMALIGN, 4800, false);
}

WAY(by_aligned_alloc)
{
    free(touched(aligned_alloc(64, 640)));
    count(ALIGNED_ALLOC, 640, true);
}

WAY(by_valloc)
{
    free(touched(valloc(3000)));
    count(VALLOC, 3000, true);
}

/* An allocator that lacks `pvalloc` cannot take back what the C library's gave. */
static bool has_pvalloc(void)
{
    Dl_info gives, takes;
    return dladdr((void *)pvalloc, &gives) && dladdr((void *)free, &takes) && gives.dli_fbase == takes.dli_fbase;
}
static bool with_pvalloc;

WAY(by_pvalloc)
{
    if (!with_pvalloc)
        return;
    free(touched(pvalloc(4096)));
    count(PVALLOC, 4096, true);
}

WAY(by_new)
{
    ::operator delete(exchange(NEW, touched(::operator new(136))));
    count(NEW, 136, false);
}

WAY(by_new_array)
{
    ::operator delete[](touched(::operator new[](300)));
    count(NEW_ARRAY, 300, true);
}

WAY(by_aligned_new)
{
    ::operator delete(touched(::operator new(512, std::align_val_t(128))), std::align_val_t(128));
    count(ALIGNED_NEW, 512, true);
}

WAY(by_nothrow_aligned_new)
{
    ::operator delete(touched(::operator new(256, std::align_val_t(128), std::nothrow)), std::align_val_t(128));
    count(NOTHROW_ALIGNED_NEW, 256, true);
}

WAY(more_than_there_is)
{
    try {
        touched(::operator new(size_t(1) << 46));
    } catch (const std::bad_alloc &) {
        thrown++;
    }
}

static void work(long turns)
{
    unsigned x = sink;
    for (long i = 0; i < turns; i++)
        x = x * 1664525u + 1013904223u;
    sink = x;
}

static void (*const ways[])(void) = {by_malloc,         by_calloc,    by_realloc,     by_posix_memalign,
                                     by_aligned_alloc,  by_valloc,    by_pvalloc,     by_new,
                                     by_new_array,      by_aligned_new, by_nothrow_aligned_new};

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    double seconds = atof(argv[2]);
    long turns = atol(argv[3]);
    int often = MALLOC, throws = 0;
    for (int i = 4; i < argc; i++) {
        if (!strcmp(argv[i], "-o") && i + 1 < argc) {
            i++;
            for (often = 0; often < FUNCTIONS && strcmp(names[often], argv[i]); often++)
                ;
            if (often == FUNCTIONS)
                return 2;
        } else if (!strcmp(argv[i], "-k") && i + 1 < argc) {
            rounds_kept = (unsigned)atoi(argv[++i]);
        } else if (!strcmp(argv[i], "-x")) {
            throws = 1;
        }
    }
    if (!rounds_kept || rounds_kept > KEPT)
        return 2;
    /* Memory that the allocator keeps is not asked of the kernel in each round. */
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
    with_pvalloc = has_pvalloc();
    gate_begin();
    double begin = now_s(), until = begin + seconds;
    for (;; rounds++) {
        for (void (*way)(void) : ways) {
            way();
            work(turns);
        }
        for (int i = 0; i < 4; i++) {
            ways[often]();
            work(turns);
        }
        if (throws)
            more_than_there_is();
        if (rounds % 64 == 0 && now_s() > until)
            break;
    }
    double took = now_s() - begin;
    gate_end();
    uint64_t all = 0, all_bytes = 0;
    truth_begin();
    truth_open("calls", '{');
    for (int i = 0; i < FUNCTIONS; i++) {
        truth_int(names[i], calls[i]);
        all += calls[i];
        all_bytes += bytes[i];
    }
    truth_close('}');
    truth_open("bytes", '{');
    for (int i = 0; i < FUNCTIONS; i++)
        truth_int(names[i], bytes[i]);
    truth_close('}');
    truth_num("calls_per_s", all / took);
    truth_num("bytes_per_s", all_bytes / took);
    truth_open("quick_bytes", '{');
    for (int i = 0; i < FUNCTIONS; i++)
        truth_int(names[i], quick_bytes[i]);
    truth_close('}');
    /* The shortest life of what is kept. */
    truth_num("kept_s", rounds_kept * took / (rounds * 5));
    truth_int("thrown", thrown);
    truth_end(argv[1]);
    return 0;
}
