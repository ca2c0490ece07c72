/* Makes processes and threads without a pause, while it is attached to as well: spawning TRUTH BASE
 * Each of them waits for the start gate and then reads every file of the directory of its kind under BASE, once:
 *   child   a process that the first one forks   grandchild   one that such a process forks   thread   of the first one
 * It makes them from its start until some time after the gate, a millisecond between each two.
 */
#include "wl.h"
#include <linux/futex.h>

enum { CHILD, GRANDCHILD, THREAD, KINDS };
static const char *kinds[] = {"child", "grandchild", "thread"};
#define MOST 3000
#define AFTER_THE_GATE 90

static struct shared {
    uint32_t gate_is_open;
    struct tally tally[KINDS];
    uint32_t processes;
    pid_t pids[2 * MOST];
} *shared;
static struct listing lists[KINDS];

static void work(int kind)
{
    char buffer[16384];
    while (!__atomic_load_n(&shared->gate_is_open, __ATOMIC_SEQ_CST))
        syscall(SYS_futex, &shared->gate_is_open, FUTEX_WAIT, 0, NULL, NULL, 0);
    for (int i = 0; i < lists[kind].count; i++)
        read_whole(&shared->tally[kind], lists[kind].paths[i], buffer, sizeof buffer);
}

static void *thread_main(void *unused)
{
    work(THREAD);
    return unused;
}

static pid_t forked(void)
{
    pid_t pid = fork();
    if (pid < 0)
        die("fork");
    if (pid == 0)
        shared->pids[__atomic_fetch_add(&shared->processes, 1, __ATOMIC_RELAXED)] = getpid();
    return pid;
}

static void child(int kind)
{
    if (kind == GRANDCHILD) {
        pid_t pid = forked();
        if (pid != 0) {
            waitpid(pid, NULL, 0);
            _exit(0);
        }
    }
    work(kind);
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 98;
    static pthread_t threads[MOST];
    uint64_t made[KINDS] = {0}, before = 0;
    shared = shared_memory(sizeof *shared);
    for (int k = 0; k < KINDS; k++) {
        char dir[4096];
        snprintf(dir, sizeof dir, "%s/%s", argv[2], kinds[k]);
        lists[k] = list_dir(dir);
    }
    char line[32];
    int n = snprintf(line, sizeof line, "ready %d\n", getpid());
    if (write(1, line, n) != n)
        die("write ready");
    struct pollfd gate = {0, POLLIN, 0};
    for (int all = 0, after = 0; after < AFTER_THE_GATE; all++) {
        if (all == MOST)
            return 97; /* the gate did not open */
        if (!shared->gate_is_open && poll(&gate, 1, 0) > 0) {
            wait_line(1);
            before = all;
            __atomic_store_n(&shared->gate_is_open, 1, __ATOMIC_SEQ_CST);
            syscall(SYS_futex, &shared->gate_is_open, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
        }
        after += shared->gate_is_open;
        int kind = all % KINDS;
        if (kind != THREAD) {
            if (forked() == 0)
                child(kind);
        } else if (pthread_create(&threads[made[kind]], NULL, thread_main, NULL)) {
            die("pthread_create");
        }
        made[kind]++;
        sleep_ms(1);
    }
    for (uint64_t i = 0; i < made[THREAD]; i++)
        pthread_join(threads[i], NULL);
    while (wait(NULL) > 0 || errno == EINTR) {
    }
    gate_end();
    truth_begin();
    truth_int("made_before_the_gate", before);
    for (int k = 0; k < KINDS; k++) {
        truth_open(kinds[k], '{');
        truth_int("made", made[k]);
        truth_tally("tally", &shared->tally[k]);
        truth_close('}');
    }
    truth_open("pids", '[');
    for (uint32_t i = 0; i < shared->processes; i++)
        truth_int(NULL, shared->pids[i]);
    truth_close(']');
    truth_end(argv[1]);
    return 0;
}
