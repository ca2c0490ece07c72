/* Load of `bench governor`: one thread that allocates at a rate which rises in steps: rates TRUTH SECONDS RATE...
 *
 * SECONDS for each RATE (calls of malloc a second, at least 1 000). Each millisecond by its own clock it makes the calls
 * that are due, and fills the rest with pieces of arithmetic, so that it never waits of its own accord. It measures by itself
 * what is added to it: how much more CPU time the calls of a millisecond take than they usually do, and for how long it
 * neither ran nor waited for a CPU. Both are told for each step, and in slots of a tenth of a second for the whole run.
 */
#include "../../tests/workloads/wl.h"

#define STEPS 16
#define TICK_NS 1000000ull
#define SLOT_TICKS 100
/* Calls of a tick that took this many times as long as usual, and this much longer, were slowed down. */
#define SLOWED_TIMES 2
#define SLOWED_NS 2000

struct step {
    uint64_t rate, from_ns, to_ns, calls, pieces, base_ns, slowed_ns, slowed_ticks, blocked_ns;
    double cpu_s;
    uint32_t first_tick, ticks;
};

static struct step steps[STEPS];
static uint32_t *tick_ns;  /* CPU time of the calls, by tick */
static uint64_t *blocked;  /* by slot */
static volatile uint64_t sink;

static uint64_t clock_ns(clockid_t id)
{
    struct timespec t;
    clock_gettime(id, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* Time for which this thread wanted a CPU and had none (proc_pid_schedstat(5)). */
static uint64_t run_delay_ns(int fd)
{
    char text[96];
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    if (n <= 0)
        die("schedstat");
    text[n] = 0;
    unsigned long long ran, waited;
    if (sscanf(text, "%llu %llu", &ran, &waited) != 2)
        die("schedstat");
    return waited;
}

__attribute__((noinline)) static void piece(void)
{
    uint64_t x = sink;
    for (int i = 0; i < 500; i++)
        x = x * 6364136223846793005ull + 1442695040888963407ull;
    sink = x;
}

__attribute__((noinline)) static void allocate(uint64_t calls)
{
    static const size_t sizes[8] = {24, 48, 64, 100, 200, 400, 720, 1000};
    for (uint64_t i = 0; i < calls; i++) {
        char *volatile block = malloc(sizes[i % 8]);
        block[0] = 1;
        free(block);
    }
}

static int by_size(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
    int count = argc - 3;
    if (count < 1 || count > STEPS)
        return 98;
    uint64_t ticks = (uint64_t)(atof(argv[2]) * 1e9) / TICK_NS, all = ticks * count;
    uint64_t slots = all / SLOT_TICKS + 1;
    tick_ns = shared_memory(all * sizeof *tick_ns);
    blocked = shared_memory(slots * sizeof *blocked);
    memset(tick_ns, 0, all * sizeof *tick_ns);
    memset(blocked, 0, slots * sizeof *blocked);
    int schedstat = open("/proc/thread-self/schedstat", O_RDONLY);
    if (schedstat < 0)
        die("/proc/thread-self/schedstat");
    gate_begin();
    uint64_t start = clock_ns(CLOCK_MONOTONIC), cpu_start = clock_ns(CLOCK_THREAD_CPUTIME_ID), tick = 0;
    uint64_t wall = start, cpu = cpu_start, delay = run_delay_ns(schedstat), slot = 0, pieces = 0;
    for (int n = 0; n < count; n++) {
        struct step *s = &steps[n];
        s->rate = strtoull(argv[n + 3], NULL, 10);
        s->from_ns = clock_ns(CLOCK_MONOTONIC);
        s->first_tick = tick;
        uint64_t step_cpu = clock_ns(CLOCK_THREAD_CPUTIME_ID), calls = s->rate * TICK_NS / 1000000000;
        while (tick < ticks * (n + 1)) {
            uint64_t before = clock_ns(CLOCK_THREAD_CPUTIME_ID);
            allocate(calls);
            tick_ns[tick] = clock_ns(CLOCK_THREAD_CPUTIME_ID) - before;
            s->calls += calls;
            uint64_t now, due = start + (tick + 1) * TICK_NS;
            while ((now = clock_ns(CLOCK_MONOTONIC)) < due) {
                piece();
                s->pieces++;
            }
            /* What was missed stays undone: a tick that comes late is the one whose time it is. */
            uint64_t next = (now - start) / TICK_NS;
            tick = next > tick + 1 ? next : tick + 1;
            if (tick / SLOT_TICKS != slot && slot < slots) {
                uint64_t w = clock_ns(CLOCK_MONOTONIC), c = clock_ns(CLOCK_THREAD_CPUTIME_ID), d = run_delay_ns(schedstat);
                uint64_t passed = w - wall, had = c - cpu + d - delay;
                uint64_t lost = passed > had ? passed - had : 0;
                blocked[slot] += lost;
                s->blocked_ns += lost;
                wall = w, cpu = c, delay = d, slot = tick / SLOT_TICKS;
            }
        }
        s->ticks = ticks * (n + 1) > s->first_tick ? ticks * (n + 1) - s->first_tick : 0;
        s->cpu_s = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - step_cpu) / 1e9;
        s->to_ns = clock_ns(CLOCK_MONOTONIC);
        pieces += s->pieces;
    }
    double wall_s = (clock_ns(CLOCK_MONOTONIC) - start) / 1e9;
    double cpu_s = (clock_ns(CLOCK_THREAD_CPUTIME_ID) - cpu_start) / 1e9;
    gate_end();
    uint64_t *slowed = shared_memory(slots * sizeof *slowed);
    uint32_t *sorted = shared_memory(ticks * sizeof *sorted);
    truth_begin();
    truth_num("wall_s", wall_s);
    truth_num("cpu_s", cpu_s);
    truth_int("units", pieces);
    truth_open("steps", '[');
    for (int n = 0; n < count; n++) {
        struct step *s = &steps[n];
        uint64_t end = (uint64_t)s->first_tick + s->ticks, done = 0;
        for (uint64_t t = s->first_tick; t < end && t < all; t++)
            if (tick_ns[t])
                sorted[done++] = tick_ns[t];
        qsort(sorted, done, sizeof *sorted, by_size);
        s->base_ns = done ? sorted[done / 2] : 0;
        for (uint64_t t = s->first_tick; t < end && t < all; t++)
            if (tick_ns[t] > SLOWED_TIMES * s->base_ns && tick_ns[t] > s->base_ns + SLOWED_NS) {
                s->slowed_ticks++;
                s->slowed_ns += tick_ns[t] - s->base_ns;
                slowed[t / SLOT_TICKS] += tick_ns[t] - s->base_ns;
            }
        truth_open(NULL, '{');
        truth_int("rate", s->rate);
        truth_int("from_ns", s->from_ns);
        truth_int("to_ns", s->to_ns);
        truth_int("calls", s->calls);
        truth_int("pieces", s->pieces);
        truth_num("cpu_s", s->cpu_s);
        truth_int("base_ns", s->base_ns);
        truth_int("slowed_ticks", s->slowed_ticks);
        truth_int("slowed_ns", s->slowed_ns);
        truth_int("blocked_ns", s->blocked_ns);
        truth_close('}');
    }
    truth_close(']');
    truth_num("slot_s", SLOT_TICKS * TICK_NS / 1e9);
    truth_open("added_ns", '[');
    for (uint64_t i = 0; i + 1 < slots; i++)
        truth_int(NULL, slowed[i] + blocked[i]);
    truth_close(']');
    truth_end(argv[1]);
    return 0;
}
