/* Memory system calls, each made directly and counted: memcalls TRUTH [TIMES]
 * Bytes: the length that was asked for (the new one of mremap), and by how much the break moved, either way (brk). Sizes: of each
 * call how many were made in each power of two of these bytes; a call that fails has none.
 */
#include "wl.h"

enum { MMAP, MUNMAP, BRK, MADVISE, MREMAP, CALLS };
static const char *const names[CALLS] = {"mmap", "munmap", "brk", "madvise", "mremap"};
static uint64_t sizes[CALLS][64];

static void sized(int call, size_t size)
{
    int class = 0;
    while (size >> class)
        class++;
    sizes[call][class]++;
}

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
        sized(MMAP, size);
        for (size_t at = 0; at < size; at += 4096)
            p[at] = 1;
        if (syscall(SYS_madvise, p, size / 2, MADV_DONTNEED))
            die("madvise");
        add(&advise, size / 2);
        sized(MADVISE, size / 2);
        char *q = (char *)syscall(SYS_mremap, p, size, size + 65536, MREMAP_MAYMOVE);
        if (q == MAP_FAILED)
            die("mremap");
        add(&remap, size + 65536);
        sized(MREMAP, size + 65536);
        if (syscall(SYS_munmap, q, size + 65536))
            die("munmap");
        add(&unmap, size + 65536);
        sized(MUNMAP, size + 65536);
        add(&map, syscall(SYS_mmap, NULL, 0L, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L)); /* EINVAL */
        uintptr_t end = syscall(SYS_brk, 0L);
        add(&brks, 0);
        sized(BRK, 0);
        size_t step = (size_t)(i % 7 + 1) * 65536;
        if ((uintptr_t)syscall(SYS_brk, end + step) != end + step)
            die("brk up");
        add(&brks, step);
        sized(BRK, step);
        if ((uintptr_t)syscall(SYS_brk, end) != end)
            die("brk down");
        add(&brks, step);
        sized(BRK, step);
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
    truth_open("sizes", '{');
    for (int call = 0; call < CALLS; call++) {
        truth_open(names[call], '{');
        for (int class = 0; class < 64; class++) {
            char from[24];
            snprintf(from, sizeof from, "%llu", class ? 1ull << (class - 1) : 0ull);
            if (sizes[call][class])
                truth_int(from, sizes[call][class]);
        }
        truth_close('}');
    }
    truth_close('}');
    truth_end(argv[1]);
    return 0;
}
