/* More waits than can be told one by one, then few: flurry TRUTH [THREADS] [FLURRY_MS] [QUIET_MS]
 * Each thread sleeps for 60 µs again and again; then all are gone, and the main thread sleeps. A sleep that a busy host
 * begins too late does not block: the kernel's own count of blocks is the truth (ru_nvcsw in getrusage(2)).
 */
#include "wl.h"

static double until;
static uint64_t sleeps, blocks;

static uint64_t blocked_so_far(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_THREAD, &usage))
        die("getrusage");
    return usage.ru_nvcsw;
}

static void *thread(void *unused)
{
    uint64_t n = 0;
    prctl(PR_SET_TIMERSLACK, 1);
    uint64_t before = blocked_so_far();
    while (now_s() < until) {
        struct timespec t = {0, 60000};
        clock_nanosleep(CLOCK_MONOTONIC, 0, &t, NULL);
        n++;
    }
    __atomic_add_fetch(&blocks, blocked_so_far() - before, __ATOMIC_RELAXED);
    __atomic_add_fetch(&sleeps, n, __ATOMIC_RELAXED);
    return unused;
}

int main(int argc, char **argv)
{
    int threads = argc > 2 ? atoi(argv[2]) : 8;
    long flurry_ms = argc > 3 ? atol(argv[3]) : 2500, quiet_ms = argc > 4 ? atol(argv[4]) : 8000;
    pthread_t ids[64];
    gate_begin();
    until = now_s() + flurry_ms / 1e3;
    for (int i = 0; i < threads; i++)
        if (pthread_create(&ids[i], NULL, thread, NULL))
            die("pthread_create");
    for (int i = 0; i < threads; i++)
        pthread_join(ids[i], NULL);
    uint64_t before = blocked_so_far();
    for (long ms = 0; ms < quiet_ms; ms += 50)
        sleep_ms(50);
    blocks += blocked_so_far() - before;
    gate_end();
    truth_begin();
    truth_int("sleeps", sleeps + (quiet_ms + 49) / 50);
    truth_int("blocks", blocks);
    truth_num("per_s", sleeps * 1e3 / flurry_ms);
    truth_end(argv[1]);
    return 0;
}
