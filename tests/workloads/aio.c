/* Reads a file past the cache by Linux's own asynchronous I/O (io_submit(2)), one request at a time: aio TRUTH FILE TIMES
 * Its seconds are those in which it was off the CPU.
 */
#include "wl.h"
#include <linux/aio_abi.h>

#define BLOCK (1 << 20)

int main(int argc, char **argv)
{
    if (argc < 4)
        return 98;
    int fd = open(argv[2], O_RDONLY | O_DIRECT), times = atoi(argv[3]);
    struct stat file;
    aio_context_t context = 0;
    void *buffer;
    if (fd < 0 || fstat(fd, &file) || file.st_size < BLOCK)
        die(argv[2]);
    if (syscall(SYS_io_setup, 8, &context) || posix_memalign(&buffer, 4096, BLOCK))
        die("io_setup");
    struct count reads = {0};
    gate_begin();
    for (int n = 0; n < times; n++) {
        struct iocb request = {
            .aio_lio_opcode = IOCB_CMD_PREAD,
            .aio_fildes = (uint32_t)fd,
            .aio_buf = (uintptr_t)buffer,
            .aio_nbytes = BLOCK,
            .aio_offset = n % (file.st_size / BLOCK) * BLOCK,
        };
        struct iocb *requests = &request;
        struct io_event event;
        double begun = now_s() - thread_cpu_s();
        if (syscall(SYS_io_submit, context, 1, &requests) != 1 ||
            syscall(SYS_io_getevents, context, 1, 1, &event, NULL) != 1)
            die("io_submit");
        reads.seconds += now_s() - thread_cpu_s() - begun;
        add(&reads, (ssize_t)event.res);
    }
    gate_end();
    truth_begin();
    truth_count("aio", &reads);
    truth_end(argv[1]);
    return 0;
}
