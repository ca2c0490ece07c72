/* Reads every file of the directories given: files TRUTH [-m MODE] [-l] [-e] [-s] [-d] [-c] [-b BYTES]
 * [-r TIMES] [-u SECONDS] [-t THREADS] [-p MICROSECONDS] [-w MICROSECONDS] DIR...
 *   -m  read (default), pread, readv, preadv, preadv2, mix      -l  list each directory (getdents)
 *   -e  fail on purpose: stat and open of a name that is not there  -s  stat and fstat of each file
 *   -d  O_DIRECT   -c  drop each file from the page cache first     -b  bytes per call (default 65536)
 *   -u  goes on until then, -r TIMES at least   -p  sleeps after each file   -w  computes after each file
 */
#include "wl.h"

enum mode { READ, PREAD, READV, PREADV, PREADV2, MIX };
static const char *modes[] = {"read", "pread", "readv", "preadv", "preadv2", "mix"};
static enum mode mode = READ;
static int list, fail, stats, direct, repeat = 1, threads = 1, dirs;
static double until;
static long pause_us, work_us;
/* How long the first calls took, where there is one thread. */
enum { READS = 1 << 14 };
static double read_us[READS];
static int reads;
static int by_size(const void *a, const void *b)
{
    double d = *(const double *)a - *(const double *)b;
    return (d > 0) - (d < 0);
}
/* `percent` of them took no longer than that. */
static double percentile(int percent) { return read_us[(percent * reads + 99) / 100 - 1]; }
static struct worker {
    pid_t tid;
    double slept;
} workers[64];
static size_t block = 65536;
static char **dir;
static struct listing *listings;
static struct tally *tallies; /* [thread][directory] */

static ssize_t read_once(int fd, char *buffer, off_t at, int turn)
{
    struct iovec parts[2] = {{buffer, block / 2}, {buffer + block / 2, block - block / 2}};
    switch (mode == MIX ? turn % MIX : (int)mode) {
    case READ: {
        /* keeps the file's own position in step where modes are mixed */
        ssize_t n = mode == MIX && lseek(fd, at, SEEK_SET) < 0 ? -1 : read(fd, buffer, block);
        return n;
    }
    case PREAD:
        return pread(fd, buffer, block, at);
    case READV:
        if (mode == MIX && lseek(fd, at, SEEK_SET) < 0)
            return -1;
        return readv(fd, parts, 2);
    case PREADV:
        return preadv(fd, parts, 2, at);
    default:
        return preadv2(fd, parts, 2, at, 0);
    }
}

static void one_file(struct tally *t, const char *path, char *buffer)
{
    struct stat st;
    if (stats)
        add(&t->stat, syscall(SYS_newfstatat, AT_FDCWD, path, &st, 0));
    double a = now_s();
    int fd = counted_open(t, path, O_RDONLY | (direct ? O_DIRECT : 0));
    t->open.seconds += now_s() - a;
    if (fd < 0)
        die(path);
    if (stats)
        add(&t->stat, syscall(SYS_fstat, fd, &st));
    off_t at = 0;
    ssize_t n;
    int turn = 0;
    do {
        a = now_s();
        n = read_once(fd, buffer, at, turn++);
        double took = now_s() - a;
        t->read.seconds += took;
        if (threads == 1 && reads < READS)
            read_us[reads++] = took * 1e6;
        add(&t->read, n);
        at += n > 0 ? n : 0;
    } while (n > 0);
    counted_close(t, fd);
}

static void *work(void *arg)
{
    long me = (long)arg;
    workers[me].tid = tid_now();
    char *buffer;
    if (posix_memalign((void **)&buffer, 4096, block))
        die("posix_memalign");
    char *entries = malloc(65536), missing[4096];
    for (int r = 0; r < repeat || now_s() < until; r++)
        for (int d = 0; d < dirs; d++) {
            struct tally *t = &tallies[me * dirs + d];
            if (list) {
                int fd = counted_open(t, dir[d], O_RDONLY | O_DIRECTORY);
                long n;
                do {
                    n = syscall(SYS_getdents64, fd, entries, 65536);
                    add(&t->getdents, n);
                } while (n > 0);
                counted_close(t, fd);
            }
            if (fail) {
                struct stat st;
                snprintf(missing, sizeof missing, "%s/not-there", dir[d]);
                add(&t->stat, syscall(SYS_newfstatat, AT_FDCWD, missing, &st, 0));
                if (counted_open(t, missing, O_RDONLY) >= 0)
                    die("a file that should not exist");
            }
            for (int f = 0; f < listings[d].count; f++) {
                one_file(t, listings[d].paths[f], buffer);
                if (pause_us) {
                    struct timespec p = {pause_us / 1000000, pause_us % 1000000 * 1000};
                    double a = now_s();
                    clock_nanosleep(CLOCK_MONOTONIC, 0, &p, NULL);
                    workers[me].slept += now_s() - a;
                }
                for (double done = now_s() + work_us / 1e6; work_us && now_s() < done;) {
                }
            }
        }
    return NULL;
}

int main(int argc, char **argv)
{
    int cold = 0, option;
    const char *truth = argv[1];
    optind = 2;
    while ((option = getopt(argc, argv, "+m:lesdcb:r:u:t:p:w:")) != -1)
        switch (option) {
        case 'm':
            for (int m = 0; m <= MIX; m++)
                if (!strcmp(optarg, modes[m]))
                    mode = m;
            break;
        case 'l': list = 1; break;
        case 'e': fail = 1; break;
        case 's': stats = 1; break;
        case 'd': direct = 1; break;
        case 'c': cold = 1; break;
        case 'b': block = strtoul(optarg, NULL, 0); break;
        case 'r': repeat = atoi(optarg); break;
        case 'u': until = atof(optarg); break;
        case 't': threads = atoi(optarg); break;
        case 'p': pause_us = atol(optarg); break;
        case 'w': work_us = atol(optarg); break;
        default: return 98;
        }
    dir = argv + optind;
    dirs = argc - optind;
    if (dirs < 1)
        return 98;
    listings = calloc(dirs, sizeof *listings);
    tallies = calloc((size_t)dirs * threads, sizeof *tallies);
    for (int d = 0; d < dirs; d++) {
        listings[d] = list_dir(dir[d]);
        for (int f = 0; cold && f < listings[d].count; f++) {
            int fd = open(listings[d].paths[f], O_RDONLY);
            fsync(fd);
            posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
            close(fd);
        }
    }
    gate_begin();
    double began = now_s();
    until += until > 0 ? now_s() : 0;
    pthread_t other[64];
    for (long t = 1; t < threads; t++)
        pthread_create(&other[t], NULL, work, (void *)t);
    work(0);
    for (int t = 1; t < threads; t++)
        pthread_join(other[t], NULL);
    double seconds = now_s() - began;
    gate_end();

    struct tally all = {0};
    for (int i = 0; i < dirs * threads; i++) {
        add_tally(&all, &tallies[i]);
        all.open.seconds += tallies[i].open.seconds;
        all.read.seconds += tallies[i].read.seconds;
    }
    truth_begin();
    truth_tally("total", &all);
    truth_open("dirs", '{');
    for (int d = 0; d < dirs; d++) {
        struct tally one = {0};
        for (int t = 0; t < threads; t++)
            add_tally(&one, &tallies[t * dirs + d]);
        truth_tally(dir[d], &one);
    }
    truth_close('}');
    truth_num("seconds", seconds);
    if (reads) {
        qsort(read_us, reads, sizeof *read_us, by_size);
        truth_open("read_us", '{');
        truth_int("count", reads);
        truth_num("p50", percentile(50));
        truth_num("p95", percentile(95));
        truth_num("p99", percentile(99));
        truth_close('}');
    }
    truth_open("threads", '[');
    for (int i = 0; i < threads; i++) {
        struct tally one = {0};
        for (int d = 0; d < dirs; d++)
            add_tally(&one, &tallies[i * dirs + d]);
        truth_open(NULL, '{');
        truth_int("tid", workers[i].tid);
        truth_num("slept_s", workers[i].slept);
        truth_tally("io", &one);
        truth_close('}');
    }
    truth_close(']');
    truth_end(truth);
    return 0;
}
