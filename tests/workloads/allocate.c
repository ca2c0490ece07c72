/* Allocates at a known rate, in known sizes, for known times.
 *
 * allocate TRUTH SECONDS WORK [-t THREADS] [-f] [-e] [-d LIBRARY]  [-l EVERY] [-k ROUNDS] [-o SIZE] [-x] [-j SECONDS]
 * Each thread goes round: three blocks of 64 bytes that are given back at once (`quick`), one of 5 000 bytes that lives
 * for ROUNDS rounds (`kept`; 4096), and some arithmetic of WORK turns between any two.
 * -f: forks a child now and then, which allocates a little and ends. -e: in the end executes itself for no time at all.
 * -d: loads a library now and then, and lets it go. -l: one block of 5 000 bytes in so many is never given back.
 * -x: blocks of 64 bytes come from jemalloc's own `mallocx`.
 * -j: for so long at first it works a hundred times as much between two blocks.
 * -o: every second thread asks for so many bytes where the others ask for 64, and works twice as long between two blocks.
 */
#include "wl.h"
#include <dlfcn.h>

#define MOST_KEPT 4096

struct share {
    uint64_t calls, bytes, quick;
    double seconds;
    pid_t tid;
    long work, usual_work;
    double until, slow_until;
    int forks;
    unsigned leak_every, since_leak, rounds_kept, size;
    uint64_t leaked, rounds;
    const char *library;
} __attribute__((aligned(128)));

static volatile unsigned sink;

/* jemalloc's own, where they are asked for. */
static void *(*mallocx)(size_t, int);
static void (*dallocx)(void *, int);

static void work(long turns)
{
    unsigned x = sink;
    for (long i = 0; i < turns; i++)
        x = x * 1664525u + 1013904223u;
    sink = x;
}

__attribute__((noinline)) static void quick(struct share *t)
{
    char *volatile block = mallocx ? mallocx(t->size, 0) : malloc(t->size);
    block[0] = 1;
    if (dallocx)
        dallocx(block, 0);
    else
        free(block);
    t->calls++;
    t->bytes += t->size;
    t->quick++;
    __asm__ volatile("");
}

__attribute__((noinline)) static void kept(struct share *t, void **slot)
{
    if (!t->leak_every || ++t->since_leak < t->leak_every) {
        free(*slot);
    } else {
        t->since_leak = 0;
        t->leaked += 5000;
    }
    *slot = malloc(5000);
    *(char *volatile)*slot = 1;
    t->calls++;
    t->bytes += 5000;
    __asm__ volatile("");
}

static void *allocate(void *argument)
{
    struct share *t = argument;
    t->tid = tid_now();
    void **slots = mmap(NULL, MOST_KEPT * sizeof *slots, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double begin = now_s();
    for (unsigned round = 0;; round++) {
        for (int i = 0; i < 3; i++) {
            quick(t);
            work(t->work);
        }
        kept(t, &slots[round % t->rounds_kept]);
        t->rounds++;
        work(t->work);
        if (round % 256 == 0) {
            double now = now_s();
            if (now > t->until)
                break;
            if (now > t->slow_until)
                t->work = t->usual_work;
        }
        if (t->forks && round % 65536 == 65535) {
            pid_t child = fork();
            if (child == 0) {
                for (int i = 0; i < 1000; i++)
                    free(malloc(100));
                _exit(0);
            }
            int status;
            if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
                die("a forked child");
        }
        if (t->library && round % 65536 == 32767) {
            void *library = dlopen(t->library, RTLD_NOW | RTLD_LOCAL);
            if (!library) {
                fprintf(stderr, "workload: %s\n", dlerror());
                exit(97);
            }
            dlclose(library);
        }
    }
    t->seconds = now_s() - begin;
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    double seconds = atof(argv[2]);
    int threads = 1, executes = 0, other_size = 0;
    double slow_s = 0;
    struct share common = {.work = atol(argv[3]), .rounds_kept = MOST_KEPT, .size = 64};
    for (int i = 4; i < argc; i++) {
        if (!strcmp(argv[i], "-t") && i + 1 < argc)
            threads = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-f"))
            common.forks = 1;
        else if (!strcmp(argv[i], "-e"))
            executes = 1;
        else if (!strcmp(argv[i], "-d") && i + 1 < argc)
            common.library = argv[++i];
        else if (!strcmp(argv[i], "-l") && i + 1 < argc)
            common.leak_every = (unsigned)atoi(argv[++i]);
        else if (!strcmp(argv[i], "-k") && i + 1 < argc)
            common.rounds_kept = (unsigned)atoi(argv[++i]);
        else if (!strcmp(argv[i], "-o") && i + 1 < argc)
            other_size = atoi(argv[++i]);
        else if (!strcmp(argv[i], "-j") && i + 1 < argc)
            slow_s = atof(argv[++i]);
        else if (!strcmp(argv[i], "-x")) {
            *(void **)&mallocx = dlsym(RTLD_DEFAULT, "mallocx");
            *(void **)&dallocx = dlsym(RTLD_DEFAULT, "dallocx");
            if (!mallocx || !dallocx) {
                fprintf(stderr, "workload: no mallocx\n");
                return 97;
            }
        }
    }
    if (!common.rounds_kept || common.rounds_kept > MOST_KEPT)
        return 2;
    static struct share tallies[64];
    pthread_t ids[64];
    gate_begin();
    common.until = now_s() + seconds;
    common.slow_until = now_s() + slow_s;
    for (int i = 0; i < threads && i < 64; i++) {
        tallies[i] = common;
        if (other_size && i % 2) {
            tallies[i].size = (unsigned)other_size;
            tallies[i].work *= 2;
        }
        tallies[i].usual_work = tallies[i].work;
        if (slow_s > 0)
            tallies[i].work *= 100;
        if (i > 0 && pthread_create(&ids[i], NULL, allocate, &tallies[i]))
            die("pthread_create");
    }
    allocate(&tallies[0]);
    for (int i = 1; i < threads && i < 64; i++)
        pthread_join(ids[i], NULL);
    if (executes) {
        char *again[] = {argv[0], argv[1], "1", argv[3], NULL};
        setenv("WL_NOGATE", "1", 1);
        execv("/proc/self/exe", again);
        die("execv");
    }
    gate_end();
    struct share sum = {0};
    double rate = 0, bytes = 0, leaked = 0;
    for (int i = 0; i < threads && i < 64; i++) {
        sum.calls += tallies[i].calls;
        sum.bytes += tallies[i].bytes;
        sum.quick += tallies[i].quick;
        rate += tallies[i].calls / tallies[i].seconds;
        bytes += tallies[i].bytes / tallies[i].seconds;
        leaked += tallies[i].leaked / tallies[i].seconds;
    }
    printf("{\"pid\": %d, \"calls\": %llu, \"bytes\": %llu, \"quick\": %llu, \"calls_per_s\": %.1f, \"bytes_per_s\": %.1f, \"leaked_per_s\": %.1f, \"kept_s\": %.9f, \"threads\": [",
           getpid(), (unsigned long long)sum.calls, (unsigned long long)sum.bytes, (unsigned long long)sum.quick, rate,
           bytes, leaked, tallies[0].rounds_kept * tallies[0].seconds / tallies[0].rounds);
    for (int i = 0; i < threads && i < 64; i++)
        printf("%s{\"tid\": %d, \"calls_per_s\": %.1f, \"bytes_per_s\": %.1f}", i ? ", " : "", tallies[i].tid,
               tallies[i].calls / tallies[i].seconds, tallies[i].bytes / tallies[i].seconds);
    printf("]}\n");
    return 0;
}
