/* More threads at once than a profiler has room for: throng TRUTH THREADS
 * All are made after the start gate, and end when the last is there.
 */
#include "wl.h"
#include <linux/futex.h>

static uint32_t over;

static void *body(void *unused)
{
    while (!__atomic_load_n(&over, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &over, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 98;
    int threads = atoi(argv[2]);
    pthread_t *ids = calloc((size_t)threads, sizeof *ids);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 32768);
    pthread_attr_setguardsize(&small, 0);
    gate_begin();
    for (int t = 0; t < threads; t++)
        if ((errno = pthread_create(&ids[t], &small, body, NULL)))
            die("pthread_create");
    __atomic_store_n(&over, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &over, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
    for (int t = 0; t < threads; t++)
        pthread_join(ids[t], NULL);
    gate_end();
    truth_begin();
    truth_int("threads", (uint64_t)threads + 1);
    truth_end(argv[1]);
    return 0;
}
