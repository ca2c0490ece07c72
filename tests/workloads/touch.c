/* Calls at known times: touch TRUTH [MESSAGES]
 * A child writes a message into a pipe every 20 ms. The main thread reads each, and notes the times before
 * and after the call. After every fifth it reads /dev/zero 50 times in a row, and maps and unmaps a page.
 */
#include "wl.h"
#include <sys/sysmacros.h>

enum { MOST = 1000, BURST = 50 };
static uint64_t from[MOST], to[MOST], bytes[MOST];
static char data[4096];

static uint64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

int main(int argc, char **argv)
{
    int messages = argc > 2 ? atoi(argv[2]) : 75, p[2], start[2];
    if (messages > MOST || pipe(p) || pipe(start))
        die("pipe");
    pid_t child = fork();
    if (child < 0)
        die("fork");
    if (!child) {
        char c;
        close(p[0]);
        close(start[1]);
        if (read(start[0], &c, 1) != 1)
            _exit(1);
        for (int i = 0; i < messages; i++) {
            sleep_ms(20);
            if (write(p[1], data, 100 + i) != 100 + i)
                _exit(2);
        }
        pause();
    }
    close(p[1]);
    close(start[0]);
    int zero = open("/dev/zero", O_RDONLY);
    struct stat s;
    if (zero < 0 || fstat(p[0], &s))
        die("/dev/zero or pipe");
    uint64_t calls = 0, maps = 0;
    gate_begin();
    if (write(start[1], "g", 1) != 1)
        die("write");
    calls++;
    for (int i = 0; i < messages; i++) {
        from[i] = now_ns();
        ssize_t n = read(p[0], data, sizeof data);
        to[i] = now_ns();
        bytes[i] = n;
        calls++;
        if (i % 5 == 4) {
            for (int j = 0; j < BURST; j++)
                if (read(zero, data, 64) != 64)
                    die("/dev/zero");
            void *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
            munmap(page, 4096);
            calls += BURST + 2;
            maps++;
        }
    }
    sleep_ms(5);
    gate_end();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    truth_begin();
    truth_int("child", child);
    truth_int("pipe", s.st_ino);
    truth_int("calls", calls + gate_reads + gate_writes);
    truth_int("maps", maps);
    truth_open("reads", '[');
    for (int i = 0; i < messages; i++) {
        truth_open(NULL, '{');
        truth_int("from_ns", from[i]);
        truth_int("to_ns", to[i]);
        truth_int("bytes", bytes[i]);
        truth_close('}');
    }
    truth_close(']');
    truth_end(argv[1]);
    return 0;
}
