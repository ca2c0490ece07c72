/* Threads that share one CPU: contend TRUTH [THREADS] [SECONDS] [CPU]
 * The scheduler's own account of each thread (/proc/thread-self/schedstat: nanoseconds on the CPU, and
 * waiting for it) is read by the thread itself at its begin and its end.
 */
#include "wl.h"

struct row {
    pid_t tid;
    char name[16];
    double on_cpu_s, runnable_s;
};
static struct row rows[64];
static double seconds = 1;
static int cpu;

static void schedstat(double *on_cpu, double *runnable)
{
    char text[128] = {0};
    unsigned long long a, b;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY);
    if (fd < 0 || read(fd, text, sizeof text - 1) <= 0 || sscanf(text, "%llu %llu", &a, &b) != 2)
        die("schedstat");
    close(fd);
    *on_cpu = a / 1e9, *runnable = b / 1e9;
}

static void *body(void *arg)
{
    struct row *r = &rows[(long)arg];
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    r->tid = tid_now();
    snprintf(r->name, sizeof r->name, "ct-%ld", (long)arg);
    name_thread(r->name);
    sched_setaffinity(0, sizeof set, &set);
    for (double until = now_s() + seconds; now_s() < until;) {
    }
    schedstat(&r->on_cpu_s, &r->runnable_s); /* of the thread's whole life: it began in the window */
    return NULL;
}

int main(int argc, char **argv)
{
    int threads = argc > 2 ? atoi(argv[2]) : 4;
    if (argc > 3)
        seconds = atof(argv[3]);
    if (argc > 4)
        cpu = atoi(argv[4]);
    gate_begin();
    pthread_t other[64];
    for (long i = 0; i < threads; i++)
        pthread_create(&other[i], NULL, body, (void *)i);
    for (int i = 0; i < threads; i++)
        pthread_join(other[i], NULL);
    gate_end();
    truth_begin();
    truth_open("threads", '[');
    for (int i = 0; i < threads; i++) {
        truth_open(NULL, '{');
        truth_str("name", rows[i].name);
        truth_int("tid", rows[i].tid);
        truth_num("on_cpu_s", rows[i].on_cpu_s);
        truth_num("runnable_s", rows[i].runnable_s);
        truth_close('}');
    }
    truth_close(']');
    truth_end(argv[1]);
    return 0;
}
