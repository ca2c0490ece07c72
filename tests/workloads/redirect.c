/* Makes descriptors refer to other files in every way that a process has, as fast as it can:
 * redirect TRUTH A B MILLISECONDS, with the files A/0 and B/0 of different sizes.
 * Counts by the folder of the file that was really opened, read or closed.
 */
#include "wl.h"
#include <sys/socket.h>

static struct tally a, b;
static struct count brks;
static uint64_t closes;
static char from_a[4096], from_b[4096], buffer[8192];

static int opened(struct tally *t)
{
    int fd = counted_open(t, t == &a ? from_a : from_b, O_RDONLY);
    if (fd < 0)
        die("open");
    return fd;
}

static void readable(struct tally *t, int fd)
{
    add(&t->read, pread(fd, buffer, sizeof buffer, 0));
}

static void closed(int fd)
{
    if (close(fd))
        die("close");
    closes++;
}

static void same(int fd, int other)
{
    if (fd != other)
        die("the lowest free number is not what was closed last");
}

/* One descriptor is replaced by a thread that shares the table and is gone afterwards. */
struct replacement {
    int from, to;
};

static void *replace(void *arg)
{
    struct replacement *r = arg;
    if (dup2(r->from, r->to) < 0)
        die("dup2");
    return NULL;
}

static void by_thread(void)
{
    int fd = opened(&a), other = opened(&b);
    readable(&a, fd);
    struct replacement r = {other, fd};
    pthread_t thread;
    if (pthread_create(&thread, NULL, replace, &r) || pthread_join(thread, NULL))
        die("thread");
    readable(&b, fd);
    readable(&b, fd);
    closed(other);
    closed(fd);
}

static void by_message(int pair[2])
{
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 'x';
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    int other = opened(&b), fd = opened(&a);
    readable(&a, fd);
    *head = (struct cmsghdr){CMSG_LEN(sizeof other), SOL_SOCKET, SCM_RIGHTS};
    memcpy(CMSG_DATA(head), &other, sizeof other);
    if (sendmsg(pair[0], &message, 0) != 1)
        die("sendmsg");
    closed(fd);
    message.msg_controllen = sizeof control;
    if (recvmsg(pair[1], &message, 0) != 1)
        die("recvmsg");
    int got;
    memcpy(&got, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof got);
    same(got, fd);
    readable(&b, got);
    closed(got);
    closed(other);
}

static void by_calls(void)
{
    int fd = opened(&a), other = opened(&b);
    readable(&a, fd);
    if (dup2(other, fd) != fd)
        die("dup2");
    readable(&b, fd);
    closed(fd);

    same(opened(&a), fd);
    readable(&a, fd);
    if (dup3(other, fd, O_CLOEXEC) != fd)
        die("dup3");
    readable(&b, fd);
    closed(fd);

    same(opened(&a), fd);
    readable(&a, fd);
    closed(fd);
    same(dup(other), fd);
    readable(&b, fd);
    closed(fd);

    same(opened(&a), fd);
    readable(&a, fd);
    closed(fd);
    same(fcntl(other, F_DUPFD, 0), fd);
    readable(&b, fd);
    closed(fd);

    same(opened(&a), fd);
    readable(&a, fd);
    if (syscall(SYS_close_range, fd, fd, 0))
        die("close_range");
    same(dup(other), fd);
    readable(&b, fd);
    closed(fd);
    closed(other);
}

static void heap(void)
{
    uintptr_t end = syscall(SYS_brk, 0L);
    for (int i = 0; i < 2; i++) {
        uintptr_t next = end + (i ? 0 : 65536);
        if ((uintptr_t)syscall(SYS_brk, next) != next)
            die("brk");
    }
    add(&brks, 0);
    add(&brks, 65536);
    add(&brks, 65536);
}

int main(int argc, char **argv)
{
    if (argc < 5)
        return 98;
    int pair[2];
    snprintf(from_a, sizeof from_a, "%s/0", argv[2]);
    snprintf(from_b, sizeof from_b, "%s/0", argv[3]);
    if (socketpair(AF_UNIX, SOCK_DGRAM, 0, pair))
        die("socketpair");
    /* What the C library needs for its first thread is set up before the watch. */
    struct replacement none = {0, 0};
    pthread_t thread;
    if (pthread_create(&thread, NULL, replace, &none) || pthread_join(thread, NULL))
        die("thread");
    gate_begin();
    heap();
    double end = now_s() + atoi(argv[4]) / 1000.0;
    for (long i = 0; now_s() < end; i++) {
        by_calls();
        if (i % 16 == 0) {
            by_message(pair);
            heap();
        }
        if (i % 256 == 0)
            by_thread();
    }
    gate_end();
    truth_begin();
    truth_tally("a", &a);
    truth_tally("b", &b);
    truth_count("brk", &brks);
    truth_int("closes", closes);
    truth_end(argv[1]);
    return 0;
}
