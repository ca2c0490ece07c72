/* What every workload shares: the two gates, the ground truth, and counted system calls.
 *
 * A workload counts what it does itself, so that a test compares the profiler with the truth and never
 * with a guess. Its life:
 *   "ready PID" on standard output, then it waits for a line on standard input (start gate);
 *   it works;
 *   "done" on standard output, then it waits for a line or end of file (end gate: the test ends the
 *   profiler first);
 *   it writes one JSON line of ground truth to the file named by its first argument ("-": standard
 *   output), after the end gate, so that this write is outside the watched window.
 * WL_NOGATE=1 drops both gates (for `trainprof run`).
 *
 * Both gates wait in poll, so that no read is under way when a profiler attaches: the read of the start
 * line and the write of "done" are inside the window, and gate_reads and gate_writes count them.
 * Programs are linked statically: an exec'd one opens no library and no cache of them.
 */
#ifndef WL_H
#define WL_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static inline void die(const char *what)
{
    fprintf(stderr, "workload: %s: %s\n", what, strerror(errno));
    exit(99);
}

static inline double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static inline double thread_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* How often this thread has left the CPU to wait. A call that finds what it wants does not, and one may do so twice. */
static inline uint64_t switches(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage))
        die("getrusage");
    return usage.ru_nvcsw;
}

static inline pid_t tid_now(void) { return (pid_t)syscall(SYS_gettid); }
static inline void name_thread(const char *name) { prctl(PR_SET_NAME, name, 0, 0, 0); }

static inline void sleep_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &t, &t) == EINTR) {
    }
}

/* Gates. */
static uint64_t gate_reads, gate_read_bytes, gate_writes, gate_write_bytes;
static struct rusage usage_before, usage_after;

static inline int gated(void)
{
    const char *off = getenv("WL_NOGATE");
    return !(off && *off == '1');
}

static inline void wait_line(int in_window)
{
    struct pollfd p = {0, POLLIN, 0};
    while (poll(&p, 1, -1) < 0 && errno == EINTR) {
    }
    if (!in_window)
        getrusage(RUSAGE_SELF, &usage_after);
    char line[64];
    ssize_t n = read(0, line, sizeof line);
    if (in_window) {
        gate_reads++;
        gate_read_bytes += n > 0 ? (uint64_t)n : 0;
    }
}

static inline void gate_begin(void)
{
    if (gated()) {
        char line[32];
        int n = snprintf(line, sizeof line, "ready %d\n", getpid());
        if (write(1, line, n) != n)
            die("write ready");
        getrusage(RUSAGE_SELF, &usage_before);
        getrusage(RUSAGE_SELF, &usage_before); /* the first call may itself have faulted its target in */
        wait_line(1);
    } else {
        getrusage(RUSAGE_SELF, &usage_before);
    }
}

static inline void gate_end(void)
{
    if (gated()) {
        gate_writes++;
        gate_write_bytes += 5;
        if (write(1, "done\n", 5) != 5)
            die("write done");
        wait_line(0);
    } else {
        getrusage(RUSAGE_SELF, &usage_after);
    }
}

/* Ground truth: one JSON object, built without allocation. */
static char truth_text[1 << 20];
static size_t truth_len;
static int truth_first = 1;

static inline void truth_raw(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(truth_text + truth_len, sizeof truth_text - truth_len, format, args);
    va_end(args);
    if (n < 0 || truth_len + n >= sizeof truth_text) {
        errno = ENOSPC;
        die("ground truth too long");
    }
    truth_len += n;
}
static inline void truth_key(const char *key)
{
    if (!truth_first)
        truth_raw(",");
    truth_first = 0;
    if (key)
        truth_raw("\"%s\":", key);
}
static inline void truth_open(const char *key, char bracket)
{
    truth_key(key);
    truth_raw("%c", bracket);
    truth_first = 1;
}
static inline void truth_close(char bracket)
{
    truth_raw("%c", bracket);
    truth_first = 0;
}
static inline void truth_int(const char *key, uint64_t value)
{
    truth_key(key);
    truth_raw("%llu", (unsigned long long)value);
}
static inline void truth_num(const char *key, double value)
{
    truth_key(key);
    truth_raw("%.9f", value);
}
static inline void truth_str(const char *key, const char *value)
{
    truth_key(key);
    truth_raw("\"%s\"", value);
}
static inline void truth_begin(void)
{
    truth_raw("{");
    truth_int("pid", getpid());
}
static inline void truth_end(const char *path)
{
    truth_open("gate", '{');
    truth_int("reads", gate_reads);
    truth_int("read_bytes", gate_read_bytes);
    truth_int("writes", gate_writes);
    truth_int("write_bytes", gate_write_bytes);
    truth_close('}');
    truth_open("faults", '{');
    truth_int("minor", usage_after.ru_minflt - usage_before.ru_minflt);
    truth_int("major", usage_after.ru_majflt - usage_before.ru_majflt);
    /* Blocks of 512 bytes that it had fetched from a device (task_io_account_read in the kernel). */
    truth_int("blocks_fetched", usage_after.ru_inblock - usage_before.ru_inblock);
    truth_close('}');
    truth_raw("}\n");
    int fd = strcmp(path, "-") ? open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644) : 1;
    if (fd < 0 || write(fd, truth_text, truth_len) != (ssize_t)truth_len)
        die(path);
    if (fd != 1)
        close(fd);
}

/* Counted system calls on files. One counter per operation, of its results. */
struct count {
    uint64_t calls, errors, bytes;
    double seconds;
};
struct tally {
    struct count open, read, write, close, stat, getdents;
};

static inline void add(struct count *c, ssize_t result)
{
    __atomic_add_fetch(&c->calls, 1, __ATOMIC_RELAXED);
    if (result < 0)
        __atomic_add_fetch(&c->errors, 1, __ATOMIC_RELAXED);
    else
        __atomic_add_fetch(&c->bytes, (uint64_t)result, __ATOMIC_RELAXED);
}
static inline void add_tally(struct tally *into, const struct tally *from)
{
    struct count *a = (struct count *)into;
    const struct count *b = (const struct count *)from;
    for (size_t i = 0; i < sizeof *into / sizeof *a; i++) {
        __atomic_add_fetch(&a[i].calls, b[i].calls, __ATOMIC_RELAXED);
        __atomic_add_fetch(&a[i].errors, b[i].errors, __ATOMIC_RELAXED);
        __atomic_add_fetch(&a[i].bytes, b[i].bytes, __ATOMIC_RELAXED);
    }
}
static inline void truth_count(const char *key, const struct count *c)
{
    truth_open(key, '{');
    truth_int("count", c->calls);
    truth_int("errors", c->errors);
    truth_int("bytes", c->bytes);
    truth_num("seconds", c->seconds);
    truth_close('}');
}
static inline void truth_tally(const char *key, const struct tally *t)
{
    truth_open(key, '{');
    truth_count("open", &t->open);
    truth_count("read", &t->read);
    truth_count("write", &t->write);
    truth_count("close", &t->close);
    truth_count("stat", &t->stat);
    truth_count("getdents", &t->getdents);
    truth_close('}');
}

static inline int counted_open(struct tally *t, const char *path, int flags)
{
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, flags, 0644);
    add(&t->open, fd < 0 ? -1 : 0);
    return fd;
}
static inline void counted_close(struct tally *t, int fd) { add(&t->close, close(fd)); }

/* Opens one file, reads it to its end in calls of `size` bytes, closes it. */
static inline void read_whole(struct tally *t, const char *path, char *buffer, size_t size)
{
    int fd = counted_open(t, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        die(path);
    ssize_t n;
    do {
        n = read(fd, buffer, size);
        add(&t->read, n);
    } while (n > 0);
    counted_close(t, fd);
}

/* The regular files of a directory, listed before the start gate. */
struct listing {
    char **paths;
    int count;
};
static inline struct listing list_dir(const char *dir)
{
    struct listing l = {0};
    DIR *d = opendir(dir);
    if (!d)
        die(dir);
    for (struct dirent *e; (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, ".."))
            continue;
        l.paths = (char **)realloc(l.paths, (l.count + 1) * sizeof *l.paths);
        if (asprintf(&l.paths[l.count++], "%s/%s", dir, e->d_name) < 0)
            die("asprintf");
    }
    closedir(d);
    return l;
}

static inline void *shared_memory(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        die("mmap shared");
    return p;
}
#endif
