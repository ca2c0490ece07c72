/* Load c: two processes on one CPU that do nothing but hand it to each other: switches TRUTH MODE ROUNDS
 * yield: sched_yield; futex and pipe: each wakes the other and blocks. Two switches per round.
 */
#include "../../tests/workloads/wl.h"
#include <linux/futex.h>

static uint32_t *turn;
static int ping[2], pong[2];

static void play(const char *mode, long rounds, uint32_t me)
{
    char c = 0;
    for (long i = 0; i < rounds; i++) {
        if (*mode == 'y') {
            sched_yield();
        } else if (*mode == 'f') {
            while (__atomic_load_n(turn, __ATOMIC_SEQ_CST) != me)
                syscall(SYS_futex, turn, FUTEX_WAIT, !me, NULL, NULL, 0);
            __atomic_store_n(turn, !me, __ATOMIC_SEQ_CST);
            syscall(SYS_futex, turn, FUTEX_WAKE, 1, NULL, NULL, 0);
        } else {
            int *mine = me ? pong : ping, *other = me ? ping : pong;
            if (me ? write(other[1], &c, 1) != 1 || read(mine[0], &c, 1) != 1
                   : read(mine[0], &c, 1) != 1 || write(other[1], &c, 1) != 1)
                _exit(1);
        }
    }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 98;
    long rounds = atol(argv[3]);
    int status;
    turn = shared_memory(sizeof *turn);
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(0, &set);
    if (pipe(ping) || pipe(pong) || sched_setaffinity(0, sizeof set, &set))
        die("set up");
    gate_begin();
    double start = now_s();
    pid_t players[2];
    for (uint32_t i = 0; i < 2; i++)
        if ((players[i] = fork()) == 0) {
            play(argv[2], rounds, i);
            _exit(0);
        }
    for (int i = 0; i < 2; i++)
        if (waitpid(players[i], &status, 0) < 0 || status)
            die("a player failed");
    double wall = now_s() - start;
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    gate_end();
    truth_begin();
    truth_num("wall_s", wall);
    truth_num("cpu_s", usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
                           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    truth_int("units", 2 * rounds); /* switches */
    truth_int("switches_counted", usage.ru_nvcsw + usage.ru_nivcsw);
    truth_end(argv[1]);
    return 0;
}
