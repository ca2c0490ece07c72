/* A process whose first thread has ended, while a second goes on: headless TRUTH DIR FILES
 * That one passes the gates, reads FILES files of DIR (0, 1, 2, ... by relative name, DIR being its working directory) and computes.
 */
#include "wl.h"

static const char *truth;
static unsigned long long files;

static void *go_on(void *unused)
{
    /* The first thread is a zombie by now (proc(5)). */
    char path[64], stat[256] = "";
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
    do {
        sleep_ms(1);
        int fd = open(path, O_RDONLY);
        if (fd < 0 || read(fd, stat, sizeof stat - 1) < 0)
            die(path);
        close(fd);
    } while (!strstr(stat, ") Z "));
    name_thread("hl-on");
    gate_begin();
    uint64_t opens = 0, reads = 0, bytes = 0;
    for (; opens < files; opens++) {
        char name[32], data[4096];
        snprintf(name, sizeof name, "%llu", (unsigned long long)opens);
        int fd = open(name, O_RDONLY);
        ssize_t n;
        if (fd < 0)
            die(name);
        do {
            n = read(fd, data, sizeof data);
            reads++, bytes += n > 0 ? (uint64_t)n : 0;
        } while (n > 0);
        close(fd);
    }
    double cpu = thread_cpu_s();
    volatile unsigned work = 0;
    while (thread_cpu_s() < cpu + 0.5)
        for (int i = 0; i < 100000; i++)
            work += i;
    gate_end();
    truth_begin();
    truth_int("tid", tid_now());
    truth_int("opens", opens);
    truth_int("reads", reads);
    truth_int("bytes", bytes);
    truth_num("cpu_s", thread_cpu_s());
    truth_end(truth);
    exit(0);
}

int main(int argc, char **argv)
{
    pthread_t second;
    if (argc < 4)
        return 2;
    truth = argv[1], files = strtoull(argv[3], NULL, 10);
    if (chdir(argv[2]))
        die(argv[2]);
    if (pthread_create(&second, NULL, go_on, NULL))
        die("pthread_create");
    pthread_exit(NULL);
}
