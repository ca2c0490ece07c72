/* What a job takes from its host, one thing at a time: press TRUTH WHAT …
 *   burn SECONDS [CPU]         uses a CPU, pinned to it where one is named
 *   nudge SECONDS CPU          wakes there two thousand times a second, and has it for microseconds
 *   grow SECONDS MB_PER_S      allocates and touches memory at that rate, in steps of a tenth of a second
 *   open SECONDS PER_STEP      opens so many files at each tenth of a second and keeps them
 *   ask SECONDS PORT           sends a byte to a server on this host and waits for its answer, again and again
 *   serve SECONDS PORT MS      such a server: listens before its start gate, answers after so many milliseconds
 */
#include "wl.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

static double seconds;
static uint64_t done_bytes, done_files, done_answers;
static double waited_s;

static void pin(const char *cpu)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(atoi(cpu), &set);
    if (sched_setaffinity(0, sizeof set, &set))
        die("sched_setaffinity");
}

static void nudge(const char *cpu)
{
    struct timespec half_ms = {.tv_nsec = 500000};
    pin(cpu);
    for (double until = now_s() + seconds; now_s() < until;)
        nanosleep(&half_ms, NULL);
}

static void burn(const char *cpu)
{
    if (cpu)
        pin(cpu);
    for (double until = now_s() + seconds; now_s() < until;) {
    }
}

/* Until so many tenths of a second after `from`: on a busy host the rate is kept. */
static void until_step(double from, int step)
{
    double left = from + step * 0.1 - now_s();
    if (left > 0)
        sleep_ms((long)(left * 1000) + 1);
}

static void grow(long bytes)
{
    double from = now_s();
    for (int step = 0; step < seconds * 10; step++) {
        char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
            die("mmap");
        memset(p, 1, bytes);
        done_bytes += bytes;
        until_step(from, step + 1);
    }
}

static void open_files(int count)
{
    for (int step = 0; step < seconds * 10; step++) {
        for (int i = 0; i < count; i++, done_files++)
            if (open("/dev/null", O_RDONLY) < 0)
                die("open");
        sleep_ms(100);
    }
}

static struct sockaddr_in local(int port)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(port)};
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return at;
}

static void ask(int port)
{
    struct sockaddr_in at = local(port);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&at, sizeof at))
        die("connect");
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    for (double until = now_s() + seconds; now_s() < until; done_answers++) {
        char byte = 1;
        double a = now_s();
        if (write(fd, &byte, 1) != 1 || read(fd, &byte, 1) != 1)
            die("ask");
        waited_s += now_s() - a;
    }
    close(fd);
}

static int listener;
static void serve(int ms)
{
    int fd = accept(listener, NULL, NULL);
    if (fd < 0)
        die("accept");
    for (char byte; read(fd, &byte, 1) == 1; done_answers++) {
        sleep_ms(ms);
        if (write(fd, &byte, 1) != 1)
            break;
    }
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 98;
    const char *what = argv[2];
    const char *one = argc > 4 ? argv[4] : NULL, *two = argc > 5 ? argv[5] : NULL;
    seconds = atof(argv[3]);
    if (!strcmp(what, "serve")) {
        struct sockaddr_in at = local(atoi(one));
        int on = 1;
        listener = socket(AF_INET, SOCK_STREAM, 0);
        setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1))
            die("listen");
    }
    gate_begin();
    if (!strcmp(what, "burn"))
        burn(one);
    else if (!strcmp(what, "nudge"))
        nudge(one);
    else if (!strcmp(what, "grow"))
        grow(atol(one) * 100000);
    else if (!strcmp(what, "open"))
        open_files(atoi(one));
    else if (!strcmp(what, "ask"))
        ask(atoi(one));
    else if (!strcmp(what, "serve"))
        serve(atoi(two));
    else
        return 98;
    gate_end();
    truth_begin();
    truth_int("bytes", done_bytes);
    truth_int("files", done_files);
    truth_int("answers", done_answers);
    truth_num("waited_s", waited_s);
    truth_end(argv[1]);
    return 0;
}
