/* Spends CPU time in known ways, in turns of a few milliseconds: spender TRUTH [SECONDS]
 * Each way's time is the thread's own CPU clock around it.
 */
#include "wl.h"
#include <malloc.h>

/* REWRITE is TOUCH once more: the same writes without a fault. */
enum { ALLOCATE, ARITHMETIC, READ, TOUCH, REWRITE, MAP, WAYS };
static const char *names[WAYS] = {"allocate", "arithmetic", "read", "touch", "rewrite", "map"};
static double spent[WAYS];

enum { BLOCKS = 1024, FILE_BYTES = 256 << 10, MAPPED = 8 << 20 };
static void *blocks[BLOCKS];
static size_t sizes[BLOCKS];
static int order[BLOCKS];
static char buffer[FILE_BYTES];
static volatile uint64_t result;

__attribute__((noinline)) void spend_allocate(void)
{
    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = malloc(sizes[i]);
    for (int i = 0; i < BLOCKS; i++)
        free(blocks[order[i]]);
}

__attribute__((noinline)) void spend_arithmetic(void)
{
    uint64_t x = result + 88172645463325252ull;
    for (int i = 0; i < 20000; i++)
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    result = x;
}

__attribute__((noinline)) void spend_touch(char *mapped)
{
    for (size_t i = 0; i < MAPPED; i += 4096)
        mapped[i] = 1;
}

/* Between half and one and a half times as many: of equal turns a clock that keeps pace with them sees some more often. */
static int about(int times)
{
    static uint32_t seed = 7;
    seed = seed * 1664525 + 1013904223;
    return times / 2 + (int)((seed >> 8) % (uint32_t)times);
}

static double lap(double *since)
{
    double now = thread_cpu_s(), took = now - *since;
    *since = now;
    return took;
}

int main(int argc, char **argv)
{
    double seconds = argc > 2 ? atof(argv[2]) : 10;
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    uint32_t seed = 1;
    for (int i = 0; i < BLOCKS; i++) {
        seed = seed * 1664525 + 1013904223;
        sizes[i] = 16 + (seed >> 8) % 4000;
        order[i] = i;
    }
    for (int i = BLOCKS - 1; i > 0; i--) {
        seed = seed * 1664525 + 1013904223;
        int j = (seed >> 8) % (i + 1), t = order[i];
        order[i] = order[j], order[j] = t;
    }
    int fd = memfd_create("warm", 0);
    if (fd < 0 || write(fd, buffer, sizeof buffer) != sizeof buffer)
        die("memfd");
    spend_allocate();
    gate_begin();
    double begun = thread_cpu_s(), since = begun;
    while (since - begun < seconds) {
        for (int i = about(60); i > 0; i--)
            spend_allocate();
        spent[ALLOCATE] += lap(&since);
        for (int i = about(60); i > 0; i--)
            spend_arithmetic();
        spent[ARITHMETIC] += lap(&since);
        for (int i = about(40); i > 0; i--)
            if (pread(fd, buffer, sizeof buffer, 0) != sizeof buffer)
                die("pread");
        spent[READ] += lap(&since);
        char *mapped = mmap(NULL, MAPPED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (mapped == MAP_FAILED)
            die("mmap");
        spent[MAP] += lap(&since);
        spend_touch(mapped);
        spent[TOUCH] += lap(&since);
        spend_touch(mapped);
        spent[REWRITE] += lap(&since);
        munmap(mapped, MAPPED);
        spent[MAP] += lap(&since);
    }
    gate_end();
    truth_begin();
    truth_int("tid", tid_now());
    truth_open("spent_s", '{');
    for (int i = 0; i < WAYS; i++)
        truth_num(names[i], spent[i]);
    truth_close('}');
    truth_end(argv[1]);
    return 0;
}
