/* Maps files and touches each page: mmapread TRUTH [-c] [-p] FILE...
 *   -c  drop the files from the page cache first: each page is then one major fault (MADV_RANDOM keeps
 *       the kernel from reading ahead)   -p  map privately
 * The faults of the window come from getrusage (wl.h); this file adds what it mapped and touched.
 */
#include "wl.h"

#define KEPT 65536

/* Times that touches of pages took off the CPU, of those that did, in microseconds. */
static double times[KEPT];
static size_t kept;

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void truth_quantile(const char *key, double q)
{
    truth_num(key, kept ? times[(size_t)(q * (double)(kept - 1))] : 0);
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
            double away = now_s() - first - (thread_cpu_s() - worked);
            waiting += away;
            if (switches() != before && kept < KEPT)
                times[kept++] = away * 1e6;
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
    qsort(times, kept, sizeof *times, ascending);
    truth_int("slept", kept);
    truth_quantile("slept_p40_us", 0.4);
    truth_quantile("slept_p60_us", 0.6);
    truth_quantile("slept_p90_us", 0.9);
    truth_quantile("slept_p99_us", 0.99);
    truth_num("waited_s", waiting); /* off the CPU while it touched the pages */
    truth_end(truth);
    return 0;
}
