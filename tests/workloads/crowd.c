/* Processes and threads that are there before anyone attaches: crowd TRUTH DIR PROCESSES THREADS
 * All wait for the start gate; then each thread reads every file of DIR once.
 */
#include "wl.h"
#include <linux/futex.h>

struct shared {
    uint32_t go, ready, finished;
    struct tally tally;
};
static struct shared *shared;
static struct listing files;

static void wait_for_go(void)
{
    while (!__atomic_load_n(&shared->go, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &shared->go, FUTEX_WAIT, 0, NULL, NULL, 0);
}
static void *body(void *unused)
{
    char buffer[4096];
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
    wait_for_go();
    for (int i = 0; i < files.count; i++)
        read_whole(&shared->tally, files.paths[i], buffer, sizeof buffer);
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 98;
    int processes = atoi(argv[3]), threads = atoi(argv[4]);
    shared = shared_memory(sizeof *shared);
    files = list_dir(argv[2]);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 65536);
    for (int p = 0; p < processes; p++) {
        pid_t pid = fork();
        if (pid < 0)
            die("fork");
        if (pid)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pthread_t other[512];
        for (int t = 1; t < threads; t++)
            if (pthread_create(&other[t], &small, body, NULL))
                die("pthread_create");
        body(NULL);
        for (int t = 1; t < threads; t++)
            pthread_join(other[t], NULL);
        __atomic_add_fetch(&shared->finished, 1, __ATOMIC_SEQ_CST);
        pause(); /* stays, so that the report finds it alive too */
        _exit(0);
    }
    while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < (uint32_t)(processes * threads))
        sleep_ms(5);
    gate_begin();
    __atomic_store_n(&shared->go, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &shared->go, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
    while (__atomic_load_n(&shared->finished, __ATOMIC_SEQ_CST) < (uint32_t)processes)
        sleep_ms(5);
    gate_end();
    truth_begin();
    truth_int("processes", processes + 1);
    truth_int("threads", (uint64_t)processes * threads + 1);
    truth_tally("total", &shared->tally);
    truth_end(argv[1]);
    return 0;
}
