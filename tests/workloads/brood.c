/* Threads that wait for their process's memory map while it forks: brood TRUTH FILE
 *   br-sleep   sleeps 2 ms again and again
 *   br-fault   fetches one cold page of FILE through a map, then maps memory and touches it, again and again
 * The main thread forks 24 times; each time the kernel copies the tables of 192 MiB of small pages, and holds the map as long.
 */
#include "wl.h"

enum { FORKS = 24, BIG = 192 << 20, PIECE = 8 << 20 };
static volatile int over;
static pid_t sleeper, faulter;
static uint64_t sleeps, cold, touching;

static void *sleep_thread(void *unused)
{
    name_thread("br-sleep");
    sleeper = tid_now();
    while (!over) {
        uint64_t s = switches();
        sleep_ms(2);
        /* A timer that has run out before the thread had left the CPU is no wait. */
        sleeps += switches() != s;
    }
    return unused;
}

static void *fault_thread(void *file)
{
    name_thread("br-fault");
    faulter = tid_now();
    int fd = open(file, O_RDONLY);
    if (fd < 0)
        die(file);
    fsync(fd);
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        die("fadvise");
    volatile unsigned char *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        die("mmap");
    uint64_t s = switches();
    if (page[0] == 255)
        die("not what was written there");
    cold = switches() - s;
    while (!over) {
        volatile unsigned char *piece = mmap(NULL, PIECE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (piece == MAP_FAILED)
            die("mmap");
        madvise((void *)piece, PIECE, MADV_NOHUGEPAGE);
        s = switches();
        for (int at = 0; at < PIECE; at += 4096)
            piece[at] = 1;
        touching += switches() - s;
        munmap((void *)piece, PIECE);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    unsigned char *big = mmap(NULL, BIG, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (argc < 3 || big == MAP_FAILED)
        die("mmap");
    madvise(big, BIG, MADV_NOHUGEPAGE);
    for (long at = 0; at < BIG; at += 4096)
        big[at] = 1;
    gate_begin();
    pthread_t threads[2];
    if (pthread_create(&threads[0], NULL, sleep_thread, NULL) || pthread_create(&threads[1], NULL, fault_thread, argv[2]))
        die("pthread_create");
    for (int i = 0; i < FORKS; i++) {
        sleep_ms(20);
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        waitpid(child, NULL, 0);
    }
    over = 1;
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    gate_end();
    truth_begin();
    truth_int("sleeper", sleeper);
    truth_int("faulter", faulter);
    truth_int("sleeps", sleeps);
    truth_int("cold", cold);
    truth_int("touching", touching);
    truth_end(argv[1]);
    return 0;
}
