/* A thread that has nothing to do and gives up the CPU again and again, or one that makes other calls as often: yielder TRUTH yield|other
 * Truth: calls, and the seconds that they took. */
#include "wl.h"

int main(int argc, char **argv)
{
    if (argc < 3)
        return 98;
    int yields = !strcmp(argv[2], "yield");
    gate_begin();
    uint64_t calls = 0;
    double from = now_s();
    while (now_s() < from + 7)
        for (int i = 0; i < 1000; i++, calls++)
            if (yields)
                sched_yield();
            else
                syscall(SYS_getppid);
    double took = now_s() - from;
    gate_end();
    truth_begin();
    truth_int("calls", calls);
    truth_num("took_s", took);
    truth_end(argv[1]);
    return 0;
}
