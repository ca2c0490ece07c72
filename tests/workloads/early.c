/* Waits that began before anybody watched: early TRUTH MS
 * Threads wait for a pipe, a socket, a poll set and a futex before the start gate. They go on MS after it.
 */
#include "wl.h"
#include <linux/futex.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { PIPE, SOCKET, POLLED, FUTEX, KINDS };

static int pipes[2][2], sockets[2], last[2];
static uint32_t word;

static void *wait_for(void *kind)
{
    char byte;
    struct pollfd set = { .fd = pipes[1][0], .events = POLLIN };
    long got = 1;
    switch ((long)kind) {
    case PIPE: got = read(pipes[0][0], &byte, 1); break;
    case SOCKET: got = recv(sockets[0], &byte, 1, 0); break;
    case POLLED: got = poll(&set, 1, -1); break;
    case FUTEX:
        while (!__atomic_load_n(&word, __ATOMIC_SEQ_CST))
            syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        break;
    }
    if (got != 1)
        die("a wait");
    /* They are there until the watch is over. */
    if (read(last[0], &byte, 1) != 0)
        die("the end");
    return NULL;
}

static uint64_t inode(int fd)
{
    struct stat of;
    if (fstat(fd, &of))
        die("fstat");
    return of.st_ino;
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 98;
    pthread_t threads[KINDS];
    if (pipe(pipes[0]) || pipe(pipes[1]) || pipe(last) || socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
        die("pipes and sockets");
    for (long kind = 0; kind < KINDS; kind++)
        if (pthread_create(&threads[kind], NULL, wait_for, (void *)kind))
            die("a thread");
    sleep_ms(50); /* until they are in their calls */
    gate_begin();
    sleep_ms(atoi(argv[2]));
    __atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    if (write(pipes[0][1], "x", 1) != 1 || write(pipes[1][1], "x", 1) != 1 || write(sockets[1], "x", 1) != 1)
        die("write");
    sleep_ms(50);
    gate_end();
    close(last[1]);
    for (int kind = 0; kind < KINDS; kind++)
        pthread_join(threads[kind], NULL);
    truth_begin();
    truth_int("pipe", inode(pipes[0][0]));
    truth_int("socket", inode(sockets[0]));
    truth_int("polled", inode(pipes[1][0]));
    truth_int("futex", (uint64_t)(uintptr_t)&word);
    truth_end(argv[1]);
    return 0;
}
