/* Load d: a process that nobody follows, while a tool watches another: bystander TRUTH MODE CALLS [FILE]
 * getppid, files (open, read, close of FILE; CALLS opens) or switches (a pipe to and from a child on the
 * same CPU; CALLS round trips).
 */
#include "../../tests/workloads/wl.h"

int main(int argc, char **argv)
{
    if (argc < 4)
        return 98;
    long calls = atol(argv[3]), units = calls;
    char buffer[4096], c = 0;
    int there[2], back[2];
    pid_t child = 0;
    if (*argv[2] == 's') {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(0, &set);
        if (pipe(there) || pipe(back) || sched_setaffinity(0, sizeof set, &set))
            die("set up");
        if ((child = fork()) == 0) {
            close(there[1]);
            while (read(there[0], &c, 1) == 1 && write(back[1], &c, 1) == 1) {
            }
            _exit(0);
        }
        close(there[0]);
    }
    gate_begin();
    double start = now_s();
    if (*argv[2] == 'g') {
        for (long i = 0; i < calls; i++)
            syscall(SYS_getppid);
    } else if (*argv[2] == 'f') {
        for (long i = 0; i < calls; i++) {
            int fd = open(argv[4], O_RDONLY);
            if (fd < 0 || read(fd, buffer, sizeof buffer) < 0)
                die(argv[4]);
            close(fd);
        }
        units = 3 * calls;
    } else {
        for (long i = 0; i < calls; i++)
            if (write(there[1], &c, 1) != 1 || read(back[0], &c, 1) != 1)
                die("pipe");
        units = 2 * calls;
    }
    double wall = now_s() - start;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (child) {
        close(there[1]);
        waitpid(child, NULL, 0);
    }
    gate_end();
    truth_begin();
    truth_num("wall_s", wall);
    truth_num("cpu_s", usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
                           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    truth_int("units", units);
    truth_end(argv[1]);
    return 0;
}
