/* Reads files from processes and threads that come and go: forker TRUTH BASE [SHORT]
 * Each way has a directory of its own under BASE, which the caller fills with files:
 *   fork grand exec short thread texec vfork orphan
 * Each reads every file of its directory once per process; `short` is read by SHORT processes (50) one
 * after another that live a few milliseconds. Counts are kept in shared memory, across exec too (fd 9).
 * As an exec'd program: forker --read DIR ROW, started again by the ways that exec.
 */
#include "wl.h"
#include <spawn.h>

enum { FORK, GRAND, EXEC, SHORT, THREAD, TEXEC, VFORK, ORPHAN, WAYS };
static const char *ways[] = {"fork", "grand", "exec", "short", "thread", "texec", "vfork", "orphan"};
struct shared {
    struct tally tally[WAYS];
    uint32_t processes, threads, orphan_done;
    pid_t pids[512];
};
static struct shared *shared;
static struct listing lists[WAYS];
static char dirs[WAYS][4096];
extern char **environ;

static void register_self(void)
{
    uint32_t n = __atomic_fetch_add(&shared->processes, 1, __ATOMIC_SEQ_CST);
    if (n < 512)
        shared->pids[n] = getpid();
}
static void read_all(int way)
{
    char buffer[16384];
    for (int i = 0; i < lists[way].count; i++)
        read_whole(&shared->tally[way], lists[way].paths[i], buffer, sizeof buffer);
}
static void exec_self(int way)
{
    char row[16];
    snprintf(row, sizeof row, "%d", way);
    char *args[] = {"forker", "--read", dirs[way], row, NULL};
    execve("/proc/self/exe", args, environ);
    _exit(97);
}
static void reap(pid_t pid)
{
    int status;
    if (waitpid(pid, &status, 0) != pid || status)
        die("a child failed");
}
static void *thread_body(void *way)
{
    name_thread("fk-thread");
    __atomic_fetch_add(&shared->threads, 1, __ATOMIC_SEQ_CST);
    read_all((int)(long)way);
    return NULL;
}
static void *exec_body(void *way)
{
    name_thread("fk-texec");
    exec_self((int)(long)way);
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "--read")) {
        /* An exec'd program cannot list without being seen: its files are named 0, 1, 2, ... */
        int way = atoi(argv[3]);
        char path[4200], buffer[16384];
        shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, 9, 0);
        if (shared == MAP_FAILED)
            return 96;
        register_self();
        for (int i = 0;; i++) {
            snprintf(path, sizeof path, "%s/%d", argv[2], i);
            if (access(path, R_OK))
                break;
            read_whole(&shared->tally[way], path, buffer, sizeof buffer);
        }
        return 0;
    }
    int shorts = argc > 3 ? atoi(argv[3]) : 50;
    for (int w = 0; w < WAYS; w++) {
        snprintf(dirs[w], sizeof dirs[w], "%s/%s", argv[2], ways[w]);
        lists[w] = list_dir(dirs[w]);
    }
    int fd = memfd_create("counts", 0);
    if (fd < 0 || dup2(fd, 9) != 9 || ftruncate(9, sizeof *shared))
        die("memfd");
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, 9, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    gate_begin();
    register_self();

    pid_t pid = fork();
    if (pid == 0) {
        register_self();
        read_all(FORK);
        pid_t grand = fork();
        if (grand == 0) {
            register_self();
            read_all(GRAND);
            _exit(0);
        }
        reap(grand);
        _exit(0);
    }
    reap(pid);

    if ((pid = fork()) == 0)
        exec_self(EXEC);
    reap(pid);

    for (int i = 0; i < shorts; i++) {
        if ((pid = fork()) == 0) {
            register_self();
            read_all(SHORT);
            _exit(0);
        }
        reap(pid);
    }

    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, thread_body, (void *)(long)THREAD);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);

    if ((pid = fork()) == 0) { /* exec from a thread that is not the main one: it takes over the pid */
        pthread_t t;
        pthread_create(&t, NULL, exec_body, (void *)(long)TEXEC);
        for (;;)
            pause();
    }
    reap(pid);

    char row[16];
    snprintf(row, sizeof row, "%d", VFORK);
    char *args[] = {"forker", "--read", dirs[VFORK], row, NULL};
    if (posix_spawn(&pid, "/proc/self/exe", NULL, NULL, args, environ)) /* clone with CLONE_VM | CLONE_VFORK */
        die("posix_spawn");
    reap(pid);

    if ((pid = fork()) == 0) { /* a daemon: its parent is gone before it reads */
        if (fork() == 0) {
            setsid();
            sleep_ms(30);
            register_self();
            read_all(ORPHAN);
            __atomic_store_n(&shared->orphan_done, 1, __ATOMIC_SEQ_CST);
            _exit(0);
        }
        _exit(0);
    }
    reap(pid);
    while (!__atomic_load_n(&shared->orphan_done, __ATOMIC_SEQ_CST))
        sleep_ms(5);
    sleep_ms(20);
    gate_end();

    struct tally all = {0};
    truth_begin();
    truth_open("dirs", '{');
    for (int w = 0; w < WAYS; w++) {
        truth_tally(dirs[w], &shared->tally[w]);
        add_tally(&all, &shared->tally[w]);
    }
    truth_close('}');
    truth_tally("total", &all);
    truth_int("processes", shared->processes);
    truth_int("threads", shared->threads);
    truth_open("pids", '[');
    for (uint32_t i = 0; i < shared->processes && i < 512; i++)
        truth_int(NULL, shared->pids[i]);
    truth_close(']');
    truth_end(argv[1]);
    return 0;
}
