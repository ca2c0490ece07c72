/* Reads files through io_uring with raw system calls: iouring TRUTH [-b BYTES] [-q DEPTH] [-c] [-f] [-w] FILE...
 * Each request is IORING_OP_READ, _READV, _READ_FIXED or, where the kernel has it, _READV_FIXED in turn. -c drops the files from the page cache
 * first, so that completions come from the device. -f uses registered files. -w writes files of the same sizes,
 * named FILE.out, and reads of each FILE one block by a call. Exits 77 where the kernel has no io_uring.
 */
#include "wl.h"
#include <linux/io_uring.h>

/* Since Linux 6.15 (include/uapi/linux/io_uring.h). */
enum { READV_FIXED = 60, WRITEV_FIXED = 61 };

static unsigned *sq_head, *sq_tail, *sq_mask, *sq_array, *cq_head, *cq_tail, *cq_mask;
static struct io_uring_sqe *sqes;
static struct io_uring_cqe *cqes;

static int knows(int ring, unsigned operation)
{
    struct io_uring_probe *probe = calloc(1, sizeof *probe + 256 * sizeof probe->ops[0]);
    long failed = syscall(SYS_io_uring_register, ring, IORING_REGISTER_PROBE, probe, 256);
    int known = !failed && operation <= probe->last_op && probe->ops[operation].flags & IO_URING_OP_SUPPORTED;
    free(probe);
    return known;
}

int main(int argc, char **argv)
{
    const char *truth = argv[1];
    int option, cold = 0, registered = 0, writes = 0;
    unsigned depth = 8, block = 16384;
    optind = 2;
    while ((option = getopt(argc, argv, "+b:q:cfw")) != -1)
        switch (option) {
        case 'b': block = atoi(optarg); break;
        case 'q': depth = atoi(optarg); break;
        case 'c': cold = 1; break;
        case 'f': registered = 1; break;
        case 'w': writes = 1; break;
        }
    int files = argc - optind;
    char **path = argv + optind;

    struct io_uring_params p = {0};
    int ring = (int)syscall(SYS_io_uring_setup, depth, &p);
    if (ring < 0)
        return errno == ENOSYS || errno == EPERM ? 77 : 99;
    size_t sq_size = p.sq_off.array + p.sq_entries * sizeof(unsigned);
    size_t cq_size = p.cq_off.cqes + p.cq_entries * sizeof(struct io_uring_cqe);
    char *sq = mmap(0, sq_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    char *cq = mmap(0, cq_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_CQ_RING);
    sqes = mmap(0, p.sq_entries * sizeof *sqes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring,
                IORING_OFF_SQES);
    if (sq == MAP_FAILED || cq == MAP_FAILED || sqes == MAP_FAILED)
        die("mmap ring");
    sq_head = (unsigned *)(sq + p.sq_off.head), sq_tail = (unsigned *)(sq + p.sq_off.tail);
    sq_mask = (unsigned *)(sq + p.sq_off.ring_mask), sq_array = (unsigned *)(sq + p.sq_off.array);
    cq_head = (unsigned *)(cq + p.cq_off.head), cq_tail = (unsigned *)(cq + p.cq_off.tail);
    cq_mask = (unsigned *)(cq + p.cq_off.ring_mask), cqes = (struct io_uring_cqe *)(cq + p.cq_off.cqes);

    char *buffers = mmap(0, (size_t)block * depth, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    struct iovec whole = {buffers, (size_t)block * depth}, *parts = calloc(depth, sizeof *parts);
    int fixed = syscall(SYS_io_uring_register, ring, IORING_REGISTER_BUFFERS, &whole, 1) == 0;
    unsigned ways = fixed ? 3 + knows(ring, READV_FIXED) : 2;
    for (int i = 0; cold && i < files; i++) {
        int fd = open(path[i], O_RDONLY);
        fsync(fd);
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }

    struct tally t = {0};
    struct count ring_reads = {0};
    uint64_t enters = 0, kinds[4] = {0};
    gate_begin();
    for (int i = 0; i < files; i++) {
        int fd = counted_open(&t, path[i], O_RDONLY);
        struct stat st;
        add(&t.stat, syscall(SYS_fstat, fd, &st));
        if (writes) {
            char out[4096];
            snprintf(out, sizeof out, "%s.out", path[i]);
            /* One read call, so that there is a share of reads that the cache served. */
            add(&t.read, read(fd, buffers, block));
            counted_close(&t, fd);
            fd = counted_open(&t, out, O_WRONLY | O_CREAT | O_TRUNC);
        }
        if (registered && syscall(SYS_io_uring_register, ring, IORING_REGISTER_FILES, &fd, 1))
            die("register files");
        for (off_t at = 0; at < st.st_size;) {
            unsigned n = 0;
            for (; n < depth && at < st.st_size; n++, at += block) {
                unsigned slot = *sq_tail & *sq_mask;
                struct io_uring_sqe *s = &sqes[slot];
                unsigned kind = (at / block) % ways;
                memset(s, 0, sizeof *s);
                s->fd = registered ? 0 : fd;
                s->flags = registered ? IOSQE_FIXED_FILE : 0;
                s->off = at;
                if (kind % 2) {
                    parts[n] = (struct iovec){buffers + (size_t)n * block, block};
                    s->opcode = kind == 3 ? (writes ? WRITEV_FIXED : READV_FIXED)
                                : writes  ? IORING_OP_WRITEV
                                          : IORING_OP_READV;
                    s->addr = (uintptr_t)&parts[n], s->len = 1;
                } else {
                    s->opcode = writes ? (kind ? IORING_OP_WRITE_FIXED : IORING_OP_WRITE)
                                       : (kind ? IORING_OP_READ_FIXED : IORING_OP_READ);
                    s->addr = (uintptr_t)(buffers + (size_t)n * block), s->len = block;
                }
                kinds[kind]++;
                sq_array[slot] = slot;
                __atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
            }
            for (unsigned got = 0, submit = n; got < n;) {
                enters++;
                if (syscall(SYS_io_uring_enter, ring, submit, n - got, IORING_ENTER_GETEVENTS, NULL, 0) < 0)
                    die("io_uring_enter");
                submit = 0;
                while (*cq_head != __atomic_load_n(cq_tail, __ATOMIC_ACQUIRE)) {
                    add(&ring_reads, cqes[*cq_head & *cq_mask].res);
                    __atomic_store_n(cq_head, *cq_head + 1, __ATOMIC_RELEASE);
                    got++;
                }
            }
        }
        if (registered)
            syscall(SYS_io_uring_register, ring, IORING_UNREGISTER_FILES, NULL, 0);
        counted_close(&t, fd);
    }
    gate_end();
    truth_begin();
    truth_tally("total", &t);
    truth_count("uring", &ring_reads);
    truth_int("enters", enters);
    truth_int("op_read", kinds[0]);
    truth_int("op_readv", kinds[1]);
    truth_int("op_read_fixed", kinds[2]);
    truth_int("op_readv_fixed", kinds[3]);
    truth_end(truth);
    return 0;
}
