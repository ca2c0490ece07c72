/* Maps files and touches each page: mmapread TRUTH [-c] [-p] FILE...
 *   -c  drop the files from the page cache first: each page is then one major fault (MADV_RANDOM keeps
 *       the kernel from reading ahead)   -p  map privately
 * The faults of the window come from getrusage (wl.h); this file adds what it mapped and touched.
 */
#include "wl.h"

#define KEPT 65536

/* Of the touches of pages that slept, in microseconds: for how long they were off the CPU by the thread's own CPU clock, and how long
 * they took in all. What a profiler calls their time lies between: the thread's clock goes on for a part of a switch. */
static double off_cpu[KEPT], whole[KEPT];
static size_t kept;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void truth_quantiles(const char *key, double *times)
{
    qsort(times, kept, sizeof *times, ascending);
    truth_open(key, '{');
    truth_num("p50", kept ? times[(size_t)(0.5 * (double)(kept - 1))] : 0);
    truth_num("p95", kept ? times[(size_t)(0.95 * (double)(kept - 1))] : 0);
    truth_close('}');
}

int main(int argc, char **argv)
{
    int cold = 0, private = 0, option;
    const char *truth = argv[1];
    optind = 2;
    while ((option = getopt(argc, argv, "+cp")) != -1)
        cold |= option == 'c', private |= option == 'p';
    for (int i = optind; cold && i < argc; i++) {
        int fd = open(argv[i], O_RDONLY);
        if (fd < 0)
            die(argv[i]);
        fsync(fd);
        if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
            die("fadvise");
        close(fd);
    }
    struct tally t = {0};
    uint64_t maps = 0, bytes = 0, pages = 0, sum = 0;
    gate_begin();
    double start = now_s(), waiting = 0;
    for (int i = optind; i < argc; i++) {
        int fd = counted_open(&t, argv[i], O_RDONLY);
        struct stat st;
        add(&t.stat, syscall(SYS_fstat, fd, &st));
        volatile unsigned char *p =
            mmap(NULL, st.st_size, PROT_READ, private ? MAP_PRIVATE : MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            die("mmap");
        maps++;
        bytes += st.st_size;
        counted_close(&t, fd);
        madvise((void *)p, st.st_size, MADV_RANDOM);
        for (off_t at = 0; at < st.st_size; at += 4096, pages++) {
            uint64_t before = switches();
            double first = now_s(), worked = thread_cpu_s();
            sum += p[at];
            double took = now_s() - first, away = took - (thread_cpu_s() - worked);
            waiting += away;
            if (switches() != before && kept < KEPT)
                off_cpu[kept] = away * 1e6, whole[kept++] = took * 1e6;
        }
        munmap((void *)p, st.st_size);
    }
    double seconds = now_s() - start;
    gate_end();
    truth_begin();
    truth_tally("total", &t);
    truth_int("maps", maps);
    truth_int("mapped_bytes", bytes);
    truth_int("pages", pages);
    truth_int("sum", sum);
    truth_num("seconds", seconds);
    truth_int("slept", kept);
    truth_quantiles("off_cpu_us", off_cpu);
    truth_quantiles("whole_us", whole);
    truth_num("waited_s", waiting); /* off the CPU while it touched the pages */
    truth_end(truth);
    return 0;
}
