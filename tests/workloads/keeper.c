/* Takes memory in one of several ways and says how much it kept.
 *
 * keeper TRUTH KIND RATE SECONDS [FILLS_S]     RATE in bytes a second
 *
 * leak     keeps RATE, and takes and gives back four times as much beside it
 * cache    fills up, ever more slowly, to four seconds of RATE, and then stays; to 63 % in FILLS_S (1.5)
 * ring     takes RATE for FILLS_S, and from then on replaces the oldest
 * saw      takes RATE for two seconds, gives all of it back, and again
 * files    keeps RATE of files in /dev/shm, mapped and written
 * shared   maps shared memory, writes it and unmaps it, at RATE
 * share    keeps RATE of shared memory
 * huge     keeps RATE in ordinary pages, and forty times as much in huge ones
 * copy     forks a child that writes, page by page at RATE, memory that it has from its parent
 */
#include "wl.h"

#define STEP_MS 50
#define PAGE 4096

#define HUGE (2UL << 20)

static uint64_t kept, kept_huge, copied, maps, map_bytes, seconds_us;

__attribute__((noinline)) static char *keep_block(size_t bytes)
{
    char *block = malloc(bytes);
    if (!block)
        die("malloc");
    memset(block, 1, bytes);
    return block;
}

static char *map(size_t bytes, int how)
{
    char *block = mmap(0, bytes, PROT_READ | PROT_WRITE, how | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        die("mmap");
    return block;
}

__attribute__((noinline)) static void take_and_give_back(size_t bytes, int how)
{
    char *block = map(bytes, how);
    memset(block, 2, bytes);
    munmap(block, bytes);
    maps++;
    map_bytes = bytes;
}

/* One page fault brings all of it in. */
__attribute__((noinline)) static void keep_huge(void)
{
    char *block = map(2 * HUGE, MAP_PRIVATE);
    char *whole = (char *)(((uintptr_t)block + HUGE - 1) / HUGE * HUGE);
    if (madvise(whole, HUGE, MADV_HUGEPAGE))
        die("madvise");
    memset(whole, 5, HUGE);
    kept_huge += HUGE;
}

/* Gone with its mapping, and so with the process. */
static void keep_file(size_t bytes)
{
    char name[64];
    snprintf(name, sizeof name, "/dev/shm/keeper-%d", getpid());
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0 || unlink(name) || ftruncate(fd, (off_t)bytes))
        die("a file in shared memory");
    char *block = mmap(0, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (block == MAP_FAILED)
        die("mmap");
    close(fd);
    memset(block, 4, bytes);
}

__attribute__((noinline)) static void write_pages(char *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PAGE)
        from[at]++;
}

#define BLOCK 65536
#define MOST_BLOCKS 16384

static void work(const char *kind, double rate, double length, double fills, char *inherited)
{
    static char *ring[MOST_BLOCKS];
    size_t capacity = (size_t)(rate * fills / BLOCK), oldest = 0;
    double due = 0;
    if (!strcmp(kind, "ring") && (!capacity || capacity > MOST_BLOCKS)) {
        errno = ERANGE;
        die("ring");
    }
    size_t step = (size_t)(rate * STEP_MS / 1000) / PAGE * PAGE;
    char *blocks[2000 / STEP_MS];
    size_t count = 0;
    double begin = now_s(), next = begin, fill = 0;
    while (now_s() - begin < length) {
        if (!strcmp(kind, "leak")) {
            for (int i = 0; i < 4; i++)
                keep_block(step / 4);
            kept += step;
            take_and_give_back(4 * step, MAP_PRIVATE);
        } else if (!strcmp(kind, "huge")) {
            keep_block(step);
            kept += step;
            for (due += 40 * step; due >= HUGE; due -= HUGE)
                keep_huge();
        } else if (!strcmp(kind, "cache")) {
            fill += (4 * rate - fill) * STEP_MS / 1000 / fills;
            while (kept + BLOCK < fill) {
                keep_block(BLOCK);
                kept += BLOCK;
            }
        } else if (!strcmp(kind, "ring")) {
            for (due += step; due >= BLOCK; due -= BLOCK) {
                kept += ring[oldest] ? 0 : BLOCK;
                free(ring[oldest]);
                ring[oldest] = keep_block(BLOCK);
                oldest = (oldest + 1) % capacity;
            }
        } else if (!strcmp(kind, "saw")) {
            if (count < sizeof blocks / sizeof *blocks)
                blocks[count++] = keep_block(step);
            else
                while (count)
                    free(blocks[--count]);
        } else if (!strcmp(kind, "files")) {
            keep_file(step);
            kept += step;
        } else if (!strcmp(kind, "shared")) {
            take_and_give_back(step, MAP_SHARED);
        } else if (!strcmp(kind, "share")) {
            memset(map(step, MAP_SHARED), 4, step);
            kept += step;
        } else {
            write_pages(inherited + copied, step);
            copied += step;
        }
        next += STEP_MS / 1000.0;
        double left = next - now_s();
        if (left > 0)
            usleep((useconds_t)(left * 1e6));
    }
    seconds_us = (uint64_t)((now_s() - begin) * 1e6);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 98;
    const char *kind = argv[2];
    double rate = atof(argv[3]), length = atof(argv[4]), fills = argc > 5 ? atof(argv[5]) : 1.5;
    char *inherited = NULL;
    if (!strcmp(kind, "copy")) {
        size_t bytes = (size_t)(rate * (length + 2));
        inherited = map(bytes, MAP_PRIVATE);
        memset(inherited, 3, bytes);
    }
    gate_begin();
    if (!strcmp(kind, "copy")) {
        int ends[2];
        if (pipe(ends))
            die("pipe");
        pid_t child = fork();
        if (child < 0)
            die("fork");
        if (!child) {
            work(kind, rate, length, fills, inherited);
            uint64_t told[2] = {copied, seconds_us};
            if (write(ends[1], told, sizeof told) != sizeof told)
                _exit(1);
            /* Its memory is there until the watch is over. */
            pause();
        }
        uint64_t told[2] = {0, 0};
        if (read(ends[0], told, sizeof told) != sizeof told)
            die("read");
        copied = told[0];
        seconds_us = told[1];
        gate_end();
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        truth_begin();
        truth_int("child", (uint64_t)child);
    } else {
        work(kind, rate, length, fills, inherited);
        gate_end();
        truth_begin();
    }
    truth_int("kept", kept);
    truth_int("kept_huge", kept_huge);
    truth_int("copied", copied);
    truth_int("maps", maps);
    truth_int("map_bytes", map_bytes);
    truth_num("seconds", seconds_us / 1e6);
    truth_end(argv[1]);
    return 0;
}
