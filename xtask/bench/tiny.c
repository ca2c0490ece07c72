/* Load b: two processes that do nothing but open, read and close warm tiny files, as fast as they can.
 * tiny TRUTH DIR FOLDERS FILES OPENS: DIR holds FOLDERS folders 0, 1, … of FILES files 0, 1, … each.
 * OPENS per process; three system calls each.
 */
#include "../../tests/workloads/wl.h"

static uint64_t *bytes;

static void work(const char *dir, int folders, int files, long opens)
{
    char buffer[4096], (*paths)[256] = malloc((size_t)folders * files * 256);
    for (int d = 0; d < folders; d++)
        for (int f = 0; f < files; f++)
            snprintf(paths[d * files + f], 256, "%s/%d/%d", dir, d, f);
    uint64_t sum = 0;
    for (long i = 0, next = 0; i < opens; i++) {
        int fd = open(paths[next], O_RDONLY);
        ssize_t n = read(fd, buffer, sizeof buffer);
        if (fd < 0 || n < 0)
            _exit(1);
        sum += n;
        close(fd);
        next = (next + 7919) % ((long)folders * files);
    }
    __atomic_add_fetch(bytes, sum, __ATOMIC_SEQ_CST);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 98;
    int folders = atoi(argv[3]), files = atoi(argv[4]), status;
    long opens = atol(argv[5]);
    bytes = shared_memory(sizeof *bytes);
    gate_begin();
    double start = now_s();
    pid_t workers[2];
    for (int i = 0; i < 2; i++)
        if ((workers[i] = fork()) == 0) {
            work(argv[2], folders, files, opens);
            _exit(0);
        }
    for (int i = 0; i < 2; i++)
        if (waitpid(workers[i], &status, 0) < 0 || status)
            die("a reader failed");
    double wall = now_s() - start;
    struct rusage usage;
    getrusage(RUSAGE_CHILDREN, &usage);
    gate_end();
    truth_begin();
    truth_num("wall_s", wall);
    truth_num("cpu_s", usage.ru_utime.tv_sec + usage.ru_stime.tv_sec +
                           (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6);
    truth_int("units", 6 * opens); /* system calls */
    truth_int("opens", 2 * opens);
    truth_int("reads", 2 * opens);
    truth_int("bytes", *bytes);
    truth_end(argv[1]);
    return 0;
}
