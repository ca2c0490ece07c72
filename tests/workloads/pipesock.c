/* Reads and writes that are no file I/O: pipesock TRUTH [TIMES]
 * Pipes, unix and TCP sockets, /proc, /dev/zero and /dev/null, memfd, a file in /dev/shm, eventfd.
 */
#include "wl.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

struct io {
    struct count read, write;
};
static struct io pipes, sockets, proc, device, memory, anon;
static char data[1 << 16];

static void move(struct io *io, int from, int to, size_t n)
{
    add(&io->write, write(to, data, n));
    add(&io->read, read(from, data, n));
}
static void truth_io(const char *key, const struct io *io)
{
    truth_open(key, '{');
    truth_int("reads", io->read.calls);
    truth_int("writes", io->write.calls);
    truth_int("bytes_read", io->read.bytes);
    truth_int("bytes_written", io->write.bytes);
    truth_close('}');
}

int main(int argc, char **argv)
{
    int times = argc > 2 ? atoi(argv[2]) : 40, p[2], u[2], tcp[2];
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int server = socket(AF_INET, SOCK_STREAM, 0), event = eventfd(0, 0);
    if (pipe(p) || socketpair(AF_UNIX, SOCK_STREAM, 0, u) || server < 0 || event < 0)
        die("pipe or socket");
    if (bind(server, (void *)&address, length) || listen(server, 1) ||
        getsockname(server, (void *)&address, &length))
        die("bind");
    tcp[1] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(tcp[1], (void *)&address, length) || (tcp[0] = accept(server, NULL, NULL)) < 0)
        die("connect");
    gate_begin();
    for (int i = 0; i < times; i++) {
        size_t n = 1000 + i % 1000;
        move(&pipes, p[0], p[1], n);
        move(&sockets, u[0], u[1], n);
        move(&sockets, tcp[0], tcp[1], n);
        add(&sockets.write, send(u[1], data, n, 0));
        add(&sockets.read, recv(u[0], data, n, 0));
        struct iovec part = {data, n};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        add(&sockets.write, sendmsg(u[1], &message, 0));
        add(&sockets.read, recvmsg(u[0], &message, 0));

        // Never used by anybody: what was closed is not known afterwards.
        int unused[2];
        if (pipe(unused))
            die("pipe");
        close(unused[0]);
        close(unused[1]);

        int fd = open("/proc/self/stat", O_RDONLY);
        add(&proc.read, read(fd, data, 4096));
        close(fd);
        fd = open("/dev/zero", O_RDWR);
        move(&device, fd, fd, n);
        close(fd);

        fd = memfd_create("wl", 0);
        add(&memory.write, pwrite(fd, data, n, 0));
        add(&memory.read, pread(fd, data, n, 0));
        close(fd);
        fd = open("/dev/shm/trainprof-wl", O_RDWR | O_CREAT | O_TRUNC, 0600);
        if (fd < 0)
            die("/dev/shm");
        add(&memory.write, pwrite(fd, data, n, 0));
        add(&memory.read, pread(fd, data, n, 0));
        close(fd);

        uint64_t one = 1;
        add(&anon.write, write(event, &one, 8));
        add(&anon.read, read(event, &one, 8));
    }
    gate_end();
    unlink("/dev/shm/trainprof-wl");
    pipes.read.calls += gate_reads, pipes.read.bytes += gate_read_bytes;
    pipes.write.calls += gate_writes, pipes.write.bytes += gate_write_bytes;
    truth_begin();
    truth_open("other", '{');
    truth_io("pipe", &pipes);
    truth_io("socket", &sockets);
    truth_io("proc", &proc);
    truth_io("device", &device);
    truth_io("shm", &memory);
    truth_io("anon", &anon);
    truth_close('}');
    truth_end(argv[1]);
    return 0;
}
