/* Threads that each wait for one thing again and again: objects TRUTH TIMES
 * A read of a pipe, a poll of another, a receive on a socket, a futex, and a lock on a file. The first thread gives each of them what it
 * waits for some milliseconds later. A thread counts how often it left the CPU to wait (getrusage).
 */
#include "wl.h"
#include <linux/futex.h>
#include <sys/file.h>
#include <sys/socket.h>

enum { PIPE, POLL, SOCKET, FUTEX, LOCK, THINGS };

static int times, reads[2], polls[2], ends[2], holder, wanter;
static uint32_t word;
static struct thing {
    const char *name;
    pthread_t thread;
    pid_t tid;
    int nr;
    uint64_t id, waits;
} things[THINGS] = {
    {.name = "pipe", .nr = SYS_read},
    {.name = "poll", .nr = SYS_poll},
    {.name = "socket", .nr = SYS_recvfrom},
    {.name = "futex", .nr = SYS_futex, .id = (uintptr_t)&word},
    {.name = "lock", .nr = SYS_flock},
};

static uint64_t inode(int fd)
{
    struct stat st;
    if (fstat(fd, &st))
        die("fstat");
    return st.st_ino;
}

/* Waits until the first thread gives for the nth time. */
static void take(int what, uint32_t n)
{
    char byte;
    struct pollfd p = {polls[0], POLLIN, 0};
    switch (what) {
    case PIPE:
        if (read(reads[0], &byte, 1) != 1)
            die("read");
        break;
    case POLL:
        if (syscall(SYS_poll, &p, 1, -1) != 1 || read(polls[0], &byte, 1) != 1)
            die("poll");
        break;
    case SOCKET:
        if (recv(ends[0], &byte, 1, 0) != 1)
            die("recv");
        break;
    case FUTEX:
        while (__atomic_load_n(&word, __ATOMIC_ACQUIRE) == n)
            syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, n, NULL, NULL, 0);
        break;
    case LOCK:
        if (flock(wanter, LOCK_EX) || flock(wanter, LOCK_UN))
            die("flock");
        break;
    }
}

static void *taker(void *argument)
{
    struct thing *thing = argument;
    thing->tid = tid_now();
    for (int n = 0; n < times; n++) {
        uint64_t before = switches();
        take(thing - things, n);
        thing->waits += switches() - before;
        if (thing - things == LOCK)
            sleep_ms(3); /* the first thread takes it again */
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 3 || (times = atoi(argv[2])) < 1)
        return 98;
    char path[4096];
    snprintf(path, sizeof path, "%s.lock", argv[1]);
    holder = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    wanter = open(path, O_RDWR);
    if (holder < 0 || wanter < 0 || unlink(path) || pipe(reads) || pipe(polls) || socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        die("a file, pipes and a socket");
    const int of[THINGS] = {[PIPE] = reads[0], [POLL] = polls[0], [SOCKET] = ends[0], [LOCK] = wanter};
    for (int n = 0; n < THINGS; n++)
        if (n != FUTEX)
            things[n].id = inode(of[n]);
    gate_begin();
    if (flock(holder, LOCK_EX))
        die("flock");
    for (int n = 0; n < THINGS; n++)
        if (pthread_create(&things[n].thread, NULL, taker, &things[n]))
            die("a thread");
    for (int n = 0; n < times; n++) {
        sleep_ms(8);
        __atomic_add_fetch(&word, 1, __ATOMIC_RELEASE);
        syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
        if (write(reads[1], "x", 1) != 1 || write(polls[1], "x", 1) != 1 || write(ends[1], "x", 1) != 1)
            die("write");
        if (flock(holder, LOCK_UN))
            die("flock");
        sleep_ms(1);
        if (flock(holder, LOCK_EX))
            die("flock");
    }
    flock(holder, LOCK_UN);
    for (int n = 0; n < THINGS; n++)
        pthread_join(things[n].thread, NULL);
    gate_end();
    truth_begin();
    truth_open("things", '[');
    for (int n = 0; n < THINGS; n++) {
        truth_open(NULL, '{');
        truth_str("name", things[n].name);
        truth_int("tid", things[n].tid);
        truth_int("nr", things[n].nr);
        truth_int("id", things[n].id);
        truth_int("waits", things[n].waits);
        truth_close('}');
    }
    truth_close(']');
    truth_end(argv[1]);
    return 0;
}
