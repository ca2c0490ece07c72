/* Two processes, one after the other, with one process id (set_tid of clone3(2)): again TRUTH DIR OTHER
 * The first reads every file of DIR and uses CPU time; a few seconds after its end the second executes a program, which reads every
 * file of OTHER and uses more. Counts are kept in shared memory, across exec too (fd 9).
 * As an exec'd program: again --read OTHER; files there are named 0, 1, 2, ...
 */
#include "wl.h"
#include <linux/sched.h>

enum { FIRST, SECOND, LIVES };
static const double cpu[] = {0.3, 0.6};
/* Longer than aggregates are counted together, on a busy host too. */
enum { APART_MS = 3000 };
struct life {
    struct tally tally;
    double cpu_s;
    uint64_t start_time;
};
static struct life *lives;
extern char **environ;

static double process_cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static void spend(int life)
{
    volatile unsigned work = 0;
    while ((lives[life].cpu_s = process_cpu_s()) < cpu[life])
        for (int i = 0; i < 100000; i++)
            work += i;
}
/* A child with this id, or with any (0). */
static pid_t child(pid_t id)
{
    struct clone_args args = {.exit_signal = SIGCHLD};
    if (id) {
        args.set_tid = (uint64_t)(uintptr_t)&id;
        args.set_tid_size = 1;
    }
    pid_t pid = (pid_t)syscall(SYS_clone3, &args, sizeof args);
    if (pid < 0)
        die("clone3");
    return pid;
}
static void reap(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, 0) != pid || status)
        die("a child failed");
}
/* In clock ticks after boot (proc(5)), of a child that has ended and was not waited for. */
static uint64_t start_time(pid_t pid)
{
    siginfo_t info;
    char path[64], line[1024];
    unsigned long long ticks = 0;
    if (waitid(P_PID, pid, &info, WEXITED | WNOWAIT))
        die("waitid");
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file))
        die(path);
    fclose(file);
    char *rest = strrchr(line, ')');
    if (!rest || sscanf(rest + 2, "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d %*d %*d %*d %llu", &ticks) != 1)
        die("start time");
    return ticks;
}

int main(int argc, char **argv)
{
    if (argc == 3 && !strcmp(argv[1], "--read")) {
        char path[4200], buffer[16384];
        lives = mmap(NULL, LIVES * sizeof *lives, PROT_READ | PROT_WRITE, MAP_SHARED, 9, 0);
        if (lives == MAP_FAILED)
            return 96;
        for (int i = 0;; i++) {
            snprintf(path, sizeof path, "%s/%d", argv[2], i);
            if (access(path, R_OK))
                break;
            read_whole(&lives[SECOND].tally, path, buffer, sizeof buffer);
        }
        spend(SECOND);
        return 0;
    }
    struct listing list = list_dir(argv[2]);
    int fd = memfd_create("counts", 0);
    if (fd < 0 || dup2(fd, 9) != 9 || ftruncate(9, LIVES * sizeof *lives))
        die("memfd");
    lives = mmap(NULL, LIVES * sizeof *lives, PROT_READ | PROT_WRITE, MAP_SHARED, 9, 0);
    if (lives == MAP_FAILED)
        die("mmap");
    /* An id that is free, and that nobody gets soon. */
    pid_t id = child(0);
    if (id == 0)
        _exit(0);
    reap(id);
    gate_begin();

    if (child(id) == 0) {
        char buffer[16384];
        for (int i = 0; i < list.count; i++)
            read_whole(&lives[FIRST].tally, list.paths[i], buffer, sizeof buffer);
        spend(FIRST);
        _exit(0);
    }
    lives[FIRST].start_time = start_time(id);
    reap(id);
    sleep_ms(APART_MS);
    if (child(id) == 0) {
        char *args[] = {"another", "--read", argv[3], NULL};
        execve("/proc/self/exe", args, environ);
        _exit(97);
    }
    lives[SECOND].start_time = start_time(id);
    reap(id);
    gate_end();

    truth_begin();
    truth_int("id", id);
    truth_open("lives", '[');
    for (int life = 0; life < LIVES; life++) {
        truth_open(NULL, '{');
        truth_tally("files", &lives[life].tally);
        truth_num("cpu_s", lives[life].cpu_s);
        truth_int("start_time", lives[life].start_time);
        truth_close('}');
    }
    truth_close(']');
    truth_end(argv[1]);
    return 0;
}
