/* Memory system calls, each made directly and counted: memcalls TRUTH [TIMES]
 * Bytes: what was asked for (mmap, munmap, madvise), what the call grew a map by (mremap), and what the
 * break moved up by (brk).
 */
#include "wl.h"

int main(int argc, char **argv)
{
    int times = argc > 2 ? atoi(argv[2]) : 50;
    struct count map = {0}, unmap = {0}, brks = {0}, advise = {0}, remap = {0};
    gate_begin();
    for (int i = 1; i <= times; i++) {
        size_t size = (size_t)i * 65536;
        char *p = (char *)syscall(SYS_mmap, NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L);
        if (p == MAP_FAILED)
            die("mmap");
        add(&map, size);
        for (size_t at = 0; at < size; at += 4096)
            p[at] = 1;
        if (syscall(SYS_madvise, p, size / 2, MADV_DONTNEED))
            die("madvise");
        add(&advise, size / 2);
        char *q = (char *)syscall(SYS_mremap, p, size, size + 65536, MREMAP_MAYMOVE);
        if (q == MAP_FAILED)
            die("mremap");
        add(&remap, 65536);
        if (syscall(SYS_munmap, q, size + 65536))
            die("munmap");
        add(&unmap, size + 65536);
        add(&map, syscall(SYS_mmap, NULL, 0L, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L)); /* EINVAL */
        uintptr_t end = syscall(SYS_brk, 0L);
        add(&brks, 0);
        if ((uintptr_t)syscall(SYS_brk, end + 65536) != end + 65536)
            die("brk up");
        add(&brks, 65536);
        if ((uintptr_t)syscall(SYS_brk, end) != end)
            die("brk down");
        add(&brks, 0);
    }
    gate_end();
    truth_begin();
    truth_open("calls", '{');
    truth_count("mmap", &map);
    truth_count("munmap", &unmap);
    truth_count("brk", &brks);
    truth_count("madvise", &advise);
    truth_count("mremap", &remap);
    truth_close('}');
    truth_end(argv[1]);
    return 0;
}
