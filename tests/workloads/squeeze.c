/* More memory than a control group has room for.
 *
 * squeeze TRUTH swap SECONDS MB     touches so much again and again, thrice at least, so that part of it is always swapped out
 * squeeze TRUTH outgrow MB          a child touches ever more, up to so much, and is killed on the way
 */
#include "wl.h"

#define PAGE 4096

static char *map(size_t bytes)
{
    char *block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED)
        die("mmap");
    /* What a large page holds comes and goes as one. */
    madvise(block, bytes, MADV_NOHUGEPAGE);
    return block;
}

static uint64_t swapped_bytes(void)
{
    char text[8192];
    int fd = open("/proc/self/status", O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (n < 0)
        die("/proc/self/status");
    close(fd);
    text[n] = 0;
    const char *line = strstr(text, "VmSwap:");
    return line ? strtoull(line + 7, NULL, 10) * 1024 : 0;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 98;
    int swap = !strcmp(argv[2], "swap");
    size_t bytes = strtoul(argv[argc - 1], NULL, 10) << 20;
    gate_begin();
    if (swap) {
        char *block = map(bytes);
        /* Nothing comes back before the second pass, however slow the first one is. */
        double until = now_s() + atof(argv[3]);
        for (int pass = 0; pass < 3 || now_s() < until; pass++)
            for (size_t at = 0; at < bytes; at += PAGE)
                block[at]++;
        uint64_t swapped = swapped_bytes();
        gate_end();
        truth_begin();
        truth_int("swapped_bytes", swapped);
    } else {
        int status = 0;
        pid_t child = fork();
        if (child < 0)
            die("fork");
        if (!child) {
            memset(map(bytes), 1, bytes);
            _exit(0);
        }
        if (waitpid(child, &status, 0) != child)
            die("waitpid");
        gate_end();
        truth_begin();
        truth_int("child", child);
        truth_int("signal", WIFSIGNALED(status) ? WTERMSIG(status) : 0);
    }
    truth_end(argv[1]);
    return 0;
}
