/* Waits whose kind, length and waker are known: sleeper TRUTH [SCALE]
 * One thread (or child) per kind of wait, named after it, started after the start gate, so that the
 * report's row of that thread holds nothing else:
 *   sl-sleep   nanosleep                        woken by a timer
 *   sl-poll    poll of a silent pipe, time-out  woken by a timer
 *   sl-futex   futex, woken by sl-holder        sl-sock   recv on a socket, written by sl-feeder
 *   sl-pipe    read of a pipe, written by sl-feeder
 *   sl-child   waitpid for a child that sleeps
 *   sl-spin    no wait: burns CPU
 *   sl-pong    the main thread of a child process: read of a pipe, written by sl-ping of the parent
 * Each wait is measured around its system call with CLOCK_MONOTONIC, so the time holds the wait and
 * the time until the thread got a CPU.
 */
#include "wl.h"
#include <linux/futex.h>
#include <sys/socket.h>

struct row {
    char name[16], kind[16], waker[16]; /* waker: "interrupt", or the name of the thread that wakes */
    pid_t pid, tid;
    uint64_t count; /* of waits: voluntary switches in the calls */
    double seconds, cpu_s;
};
static struct row *rows;
enum { SLEEP, POLL, FUTEX, HOLDER, PIPE, SOCK, FEEDER, CHILD, SPIN, PING, PONG, ROWS };
enum { MOST_SCALE = 8 };
static int scale = 1, feed_pipe[2], feed_sock[2], ping_pipe[2];
static volatile double sink;
static struct {
    pid_t pid;
    int start[2];
} leaves[3 * MOST_SCALE];

static void begin(int row, const char *name, const char *kind, const char *waker)
{
    struct row *r = &rows[row];
    snprintf(r->name, sizeof r->name, "%s", name);
    snprintf(r->kind, sizeof r->kind, "%s", kind);
    snprintf(r->waker, sizeof r->waker, "%s", waker);
    r->pid = getpid(), r->tid = tid_now();
    name_thread(name);
}
static void end(int row) { rows[row].cpu_s = thread_cpu_s(); }
static void burn(double seconds)
{
    for (double until = thread_cpu_s() + seconds; thread_cpu_s() < until;)
        for (int i = 0; i < 1000; i++)
            sink += i * 1e-9;
}

static void *sleep_thread(void *unused)
{
    begin(SLEEP, "sl-sleep", "sleep", "interrupt");
    for (int i = 0; i < 20 * scale; i++) {
        uint64_t s = switches();
        double a = now_s();
        sleep_ms(15);
        rows[SLEEP].seconds += now_s() - a, rows[SLEEP].count += switches() - s;
    }
    end(SLEEP);
    return unused;
}
static void *poll_thread(void *unused)
{
    int silent[2];
    begin(POLL, "sl-poll", "poll", "interrupt");
    if (pipe(silent))
        die("pipe");
    struct pollfd p = {silent[0], POLLIN, 0};
    for (int i = 0; i < 12 * scale; i++) {
        uint64_t s = switches();
        double a = now_s();
        poll(&p, 1, 25);
        rows[POLL].seconds += now_s() - a, rows[POLL].count += switches() - s;
    }
    end(POLL);
    return unused;
}

static uint32_t word; /* odd: held */
static void *holder_thread(void *unused)
{
    begin(HOLDER, "sl-holder", "sleep", "interrupt");
    for (int i = 0; i < 15 * scale; i++) {
        uint64_t s = switches();
        double a = now_s();
        sleep_ms(20);
        rows[HOLDER].seconds += now_s() - a, rows[HOLDER].count += switches() - s;
        __atomic_add_fetch(&word, 1, __ATOMIC_SEQ_CST);
        syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
    end(HOLDER);
    return unused;
}
static void *futex_thread(void *unused)
{
    begin(FUTEX, "sl-futex", "futex", "sl-holder");
    for (uint32_t seen = 0; seen < 15u * scale; seen = __atomic_load_n(&word, __ATOMIC_SEQ_CST)) {
        uint64_t s = switches();
        double a = now_s();
        if (syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0) == 0)
            rows[FUTEX].count += switches() - s;
        rows[FUTEX].seconds += now_s() - a;
    }
    end(FUTEX);
    return unused;
}

static void *feeder_thread(void *unused)
{
    begin(FEEDER, "sl-feeder", "sleep", "interrupt");
    for (int i = 0; i < 20 * scale; i++) {
        uint64_t s = switches();
        double a = now_s();
        sleep_ms(12);
        rows[FEEDER].seconds += now_s() - a, rows[FEEDER].count += switches() - s;
        if (write(feed_pipe[1], "p", 1) != 1 || send(feed_sock[1], "s", 1, 0) != 1)
            die("feed");
    }
    end(FEEDER);
    return unused;
}
static void *pipe_thread(void *unused)
{
    char c;
    begin(PIPE, "sl-pipe", "pipe", "sl-feeder");
    for (int i = 0; i < 20 * scale; i++) {
        uint64_t s = switches();
        double a = now_s();
        if (read(feed_pipe[0], &c, 1) != 1)
            die("read pipe");
        rows[PIPE].seconds += now_s() - a, rows[PIPE].count += switches() - s;
    }
    end(PIPE);
    return unused;
}
static void *sock_thread(void *unused)
{
    char c;
    begin(SOCK, "sl-sock", "socket", "sl-feeder");
    for (int i = 0; i < 20 * scale; i++) {
        uint64_t s = switches();
        double a = now_s();
        if (recv(feed_sock[0], &c, 1, 0) != 1)
            die("recv");
        rows[SOCK].seconds += now_s() - a, rows[SOCK].count += switches() - s;
    }
    end(SOCK);
    return unused;
}
/* Made before the threads are: a fork holds the memory map, which threads on their way out of a wait want too. */
static void make_leaves(void)
{
    for (int i = 0; i < 3 * scale; i++) {
        if (pipe(leaves[i].start))
            die("pipe");
        if ((leaves[i].pid = fork()) == 0) {
            char c;
            name_thread("sl-leaf");
            if (read(leaves[i].start[0], &c, 1) != 1)
                _exit(1);
            sleep_ms(80);
            _exit(0);
        }
    }
}
static void *child_thread(void *unused)
{
    begin(CHILD, "sl-child", "child", "");
    for (int i = 0; i < 3 * scale; i++) {
        if (write(leaves[i].start[1], "l", 1) != 1)
            die("leaf");
        uint64_t s = switches();
        double a = now_s();
        waitpid(leaves[i].pid, NULL, 0);
        rows[CHILD].seconds += now_s() - a, rows[CHILD].count += switches() - s;
    }
    end(CHILD);
    return unused;
}
static void *spin_thread(void *unused)
{
    begin(SPIN, "sl-spin", "", "");
    burn(0.3 * scale);
    end(SPIN);
    return unused;
}
static void *ping_thread(void *unused)
{
    begin(PING, "sl-ping", "sleep", "interrupt");
    for (int i = 0; i < 20 * scale; i++) {
        uint64_t s = switches();
        double a = now_s();
        sleep_ms(14);
        rows[PING].seconds += now_s() - a, rows[PING].count += switches() - s;
        if (write(ping_pipe[1], "!", 1) != 1)
            die("ping");
    }
    close(ping_pipe[1]);
    end(PING);
    return unused;
}
static void pong_process(void)
{
    char c;
    close(ping_pipe[1]);
    begin(PONG, "sl-pong", "pipe", "sl-ping");
    for (int i = 0; i < 20 * scale; i++) {
        uint64_t s = switches();
        double a = now_s();
        if (read(ping_pipe[0], &c, 1) != 1)
            _exit(1);
        rows[PONG].seconds += now_s() - a, rows[PONG].count += switches() - s;
    }
    end(PONG);
    _exit(0);
}

int main(int argc, char **argv)
{
    if (argc > 2)
        scale = atoi(argv[2]);
    if (scale < 1 || scale > MOST_SCALE)
        die("scale");
    rows = shared_memory(ROWS * sizeof *rows);
    if (pipe(feed_pipe) || pipe(ping_pipe) || socketpair(AF_UNIX, SOCK_STREAM, 0, feed_sock))
        die("pipes");
    gate_begin();
    pid_t pong = fork();
    if (pong == 0)
        pong_process();
    make_leaves();
    void *(*bodies[])(void *) = {sleep_thread,  poll_thread, futex_thread, holder_thread, pipe_thread, sock_thread,
                                 feeder_thread, child_thread, spin_thread, ping_thread};
    pthread_t threads[10];
    for (int i = 0; i < 10; i++)
        if (pthread_create(&threads[i], NULL, bodies[i], NULL))
            die("pthread_create");
    for (int i = 0; i < 10; i++)
        pthread_join(threads[i], NULL);
    waitpid(pong, NULL, 0);
    gate_end();
    truth_begin();
    truth_open("threads", '[');
    for (int i = 0; i < ROWS; i++) {
        truth_open(NULL, '{');
        truth_str("name", rows[i].name);
        truth_str("kind", rows[i].kind);
        truth_str("waker", rows[i].waker);
        truth_int("pid", rows[i].pid);
        truth_int("tid", rows[i].tid);
        truth_int("count", rows[i].count);
        truth_num("seconds", rows[i].seconds);
        truth_num("cpu_s", rows[i].cpu_s);
        truth_close('}');
    }
    truth_close(']');
    truth_end(argv[1]);
    return 0;
}
