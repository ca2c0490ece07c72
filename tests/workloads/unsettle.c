/* Does what unsettles a profiler at the very moment at which its traps are in the job's allocator:
 * unsettle TRUTH WAY TIMES SECONDS LIBRARY OTHER
 *   exec    executes itself and goes on          fork    forks a child, which allocates and ends
 *   load    loads OTHER, allocates from it and unmaps it
 *   unload  unmaps LIBRARY, and loads it again
 * LIBRARY is an allocator of its own (slab.c), from which it allocates all the time. It looks at the first bytes of that
 * one's malloc: while they are not what they were, a trap is in. WAY is gone TIMES times, each in another window, or as
 * often as windows were seen in SECONDS. Each block is written, and read again before it is given back.
 */
#include "wl.h"
#include <dlfcn.h>

#define SEEN 32    /* bytes at the beginning of a function */
#define HELD 32    /* blocks at a time */
#define SIZE 200
#define GOES_ON_S 3
#define CLEAN_S 0.2 /* for so long no trap was seen: what comes then is of another window */

/* The only word of this program that the loader fills with an address of malloc: whose it is tells who serves the job. */
static void *(*volatile take)(size_t) = malloc;
static void (*volatile give)(void *);

struct library {
    const char *path;
    void *handle;
    const uint64_t *taken, *given;
};
static struct library slab, other;
/* What malloc of `slab` begins with in the file: a new image may have a trap in from the first moment on. */
static unsigned char clean[SEEN];
/* What libraries counted that are gone. */
static uint64_t counted_taken, counted_given;
static uint64_t calls, rounds, acted;
static volatile unsigned sink;

static void *symbol(struct library *l, const char *name)
{
    void *found = dlsym(l->handle, name);
    if (!found) {
        fprintf(stderr, "workload: %s\n", dlerror());
        exit(97);
    }
    return found;
}

static void load(struct library *l)
{
    l->handle = dlopen(l->path, RTLD_NOW | RTLD_LOCAL);
    if (!l->handle) {
        fprintf(stderr, "workload: %s\n", dlerror());
        exit(97);
    }
    l->taken = symbol(l, "taken");
    l->given = symbol(l, "given");
}

static void read_clean(void)
{
    Dl_info info;
    void *begin = symbol(&slab, "malloc");
    int fd = open(slab.path, O_RDONLY | O_CLOEXEC);
    /* Linked so that addresses are offsets in the file, as far as code goes. */
    if (!dladdr(begin, &info) || fd < 0 || pread(fd, clean, SEEN, (char *)begin - (char *)info.dli_fbase) != SEEN)
        die(slab.path);
    close(fd);
}

static void serve_from(struct library *l)
{
    take = (void *(*)(size_t))symbol(l, "malloc");
    give = (void (*)(void *))symbol(l, "free");
}

static int trapped(void)
{
    const volatile unsigned char *now = (const volatile unsigned char *)take;
    for (int i = 0; i < SEEN; i++)
        if (now[i] != clean[i])
            return 1;
    return 0;
}

__attribute__((noinline)) static void allocate(void)
{
    unsigned char *held[HELD];
    unsigned char mark = (unsigned char)++rounds;
    for (int i = 0; i < HELD; i++) {
        held[i] = take(SIZE);
        if (!held[i])
            die("no block");
        memset(held[i], mark + i, SIZE);
        calls++;
    }
    for (int i = 0; i < HELD; i++) {
        for (int b = 0; b < SIZE; b++)
            if (held[i][b] != (unsigned char)(mark + i))
                die("a block was overwritten");
        give(held[i]);
    }
    unsigned x = sink;
    for (int i = 0; i < 40000; i++)
        x = x * 1664525u + 1013904223u;
    sink = x;
}

/* Adds up what a library counted, before it is gone. */
static void account(const struct library *l)
{
    counted_taken += *l->taken;
    counted_given += *l->given;
}

static void fork_one(void)
{
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < 200; i++)
            allocate();
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        die("a forked child");
}

/* Adds up what it counted, and unmaps it. */
static void unload(struct library *l)
{
    unsigned char page;
    void *at = (void *)((uintptr_t)symbol(l, "malloc") & ~(uintptr_t)4095);
    account(l);
    if (dlclose(l->handle))
        die("dlclose");
    errno = 0;
    if (mincore(at, 4096, &page) == 0 || errno != ENOMEM)
        die("the library is still mapped");
}

static void serve_from_other(void)
{
    load(&other);
    serve_from(&other);
    for (int i = 0; i < 200; i++)
        allocate();
    unload(&other);
    serve_from(&slab);
}

static void load_again(void)
{
    unload(&slab);
    load(&slab);
    serve_from(&slab);
}

static void execute(char **argv, double until)
{
    char text[256];
    account(&slab);
    snprintf(text, sizeof text, "%llu %llu %llu %llu %.9f", (unsigned long long)acted,
             (unsigned long long)calls, (unsigned long long)counted_taken, (unsigned long long)counted_given, until);
    setenv("UNSETTLE", text, 1);
    execv("/proc/self/exe", argv);
    die("execv");
}

int main(int argc, char **argv)
{
    if (argc < 7)
        return 98;
    const char *way = argv[2], *earlier = getenv("UNSETTLE");
    uint64_t times = strtoul(argv[3], NULL, 0);
    double until = 0;
    slab.path = argv[5];
    other.path = argv[6];
    load(&slab);
    serve_from(&slab);
    read_clean();
    if (earlier) {
        unsigned long long a, c, t, g;
        if (sscanf(earlier, "%llu %llu %llu %llu %lf", &a, &c, &t, &g, &until) != 5)
            die("UNSETTLE");
        acted = a, calls = c, counted_taken = t, counted_given = g;
    } else {
        if (trapped())
            die("the file is not what is mapped");
        gate_begin();
        until = now_s() + atof(argv[4]);
    }
    double clean_since = now_s(), last = now_s();
    for (;;) {
        allocate();
        double now = now_s();
        if (now > until || (acted == times && now - last > GOES_ON_S))
            break;
        if (!trapped())
            continue;
        int another = now - clean_since > CLEAN_S;
        if (another && acted < times) {
            acted++;
            if (!strcmp(way, "exec"))
                execute(argv, until);
            else if (!strcmp(way, "fork"))
                fork_one();
            else if (!strcmp(way, "unload"))
                load_again();
            else
                serve_from_other();
            last = now_s();
        }
        clean_since = now_s();
    }
    account(&slab);
    gate_end();
    truth_begin();
    truth_int("acted", acted);
    truth_int("calls", calls);
    truth_int("taken", counted_taken);
    truth_int("given", counted_given);
    truth_end(argv[1]);
    return 0;
}
