/* Page faults at a known rate: faulter TRUTH SECONDS FILE FRESH COLD
 * Every 10 ms it touches FRESH pages of new memory (minor faults) and COLD pages of FILE, which is dropped from the page
 * cache first and mapped so that the kernel reads nothing ahead (major faults), and computes for 3 ms of CPU time.
 * What the faults took of the thread's CPU time is measured around them; how many there were is in `faults` (wl.h).
 */
#include "wl.h"

#define PAGE 4096
#define STEP_S 0.01
#define COMPUTE_S 0.003

static volatile uint64_t result;

int main(int argc, char **argv)
{
    if (argc < 6)
        return 98;
    double seconds = atof(argv[2]), spent[2] = {0, 0};
    size_t fresh = strtoul(argv[4], NULL, 10), cold = strtoul(argv[5], NULL, 10);
    int fd = open(argv[3], O_RDONLY);
    struct stat s;
    if (fd < 0 || fstat(fd, &s))
        die(argv[3]);
    fsync(fd);
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
        die("fadvise");
    volatile char *file = mmap(NULL, s.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (file == MAP_FAILED || madvise((void *)file, s.st_size, MADV_RANDOM))
        die("mmap of the file");
    gate_begin();
    double begin = now_s(), cpu = thread_cpu_s();
    size_t at = 0;
    for (double next = begin + STEP_S; now_s() - begin < seconds; next += STEP_S) {
        volatile char *new = mmap(NULL, fresh * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (new == MAP_FAILED)
            die("mmap");
        double now = thread_cpu_s();
        spent[0] += now - cpu;
        cpu = now;
        for (size_t i = 0; i < fresh; i++)
            new[i * PAGE] = 1;
        for (size_t i = 0; i < cold && at < (size_t)s.st_size; i++, at += PAGE)
            result += file[at];
        now = thread_cpu_s();
        spent[1] += now - cpu;
        cpu = now;
        munmap((void *)new, fresh * PAGE);
        for (uint64_t x = result + 88172645463325252ull; thread_cpu_s() < cpu + COMPUTE_S; result = x)
            for (int i = 0; i < 1000; i++)
                x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        double left = next - now_s();
        if (left > 0)
            usleep((useconds_t)(left * 1e6));
    }
    spent[0] += thread_cpu_s() - cpu;
    double took = now_s() - begin;
    gate_end();
    truth_begin();
    truth_int("tid", tid_now());
    truth_num("seconds", took);
    truth_int("cold", at / PAGE);
    truth_num("fault_share_of_cpu", spent[1] / (spent[0] + spent[1]));
    truth_end(argv[1]);
    return 0;
}
