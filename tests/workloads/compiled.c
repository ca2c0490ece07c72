/* A training loop whose framework computes what it compiled as a whole: compiled TRUTH LIBRARY STEPS STEP_MS
 * LIBRARY is compiledlike.c, by the name of a framework's. Each step asks for random numbers, then for its own computing; each tenth also for the
 * mean of some losses. Half way the loop evaluates. Another thread prepares something by the framework all the while. Of boosting rounds
 * alone are the framework's: steps, and those of the other thread.
 */
#include "wl.h"
#include <dlfcn.h>

#define LOGGED 10
#define EVALUATED 20

enum { NUMBERS, STEP, MEAN, EVALUATION, PREPARATION, KINDS };

static void (*execute)(void *first, void *second, void (*compute)(int), int part);
static int which;
static double step_s;
static char what[KINDS];
static uint64_t counts[KINDS];
static volatile int over;

static void compute(int part)
{
    volatile double sink = 0;
    double end = thread_cpu_s() + step_s * part / 100;
    while (thread_cpu_s() < end)
        for (int i = 0; i < 1000; i++)
            sink += i * 1e-9;
}

static void run(int kind, int part)
{
    char result[16];
    if (which < 0 && kind != STEP && kind != PREPARATION) {
        compute(part);
        return;
    }
    counts[kind]++;
    execute(result, &what[kind], compute, part);
}

static void *prepare(void *unused)
{
    while (!over) {
        run(PREPARATION, 0);
        usleep(3000);
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: compiled TRUTH LIBRARY STEPS STEP_MS\n");
        return 97;
    }
    void *library = dlopen(argv[2], RTLD_NOW);
    void *(*entry)(void) = NULL;
    int (*argument)(void) = NULL;
    if (library)
        *(void **)&entry = dlsym(library, "entry"), *(void **)&argument = dlsym(library, "argument");
    if (!entry || !argument) {
        fprintf(stderr, "workload: %s\n", dlerror());
        return 97;
    }
    *(void **)&execute = entry();
    which = argument();
    uint64_t steps = strtoull(argv[3], NULL, 10);
    step_s = atof(argv[4]) / 1e3;
    gate_begin();
    pthread_t other;
    pthread_create(&other, NULL, prepare, NULL);
    double evaluating = 0, from = now_s();
    for (uint64_t step = 0; step < steps; step++) {
        run(NUMBERS, 10);
        run(STEP, 80);
        if (step % LOGGED == LOGGED - 1)
            run(MEAN, 1);
        if (step == steps / 2) {
            double begin = now_s();
            for (int i = 0; i < EVALUATED; i++)
                run(EVALUATION, 10);
            evaluating = now_s() - begin;
        }
    }
    double to = now_s();
    over = 1;
    pthread_join(other, NULL);
    gate_end();
    uint64_t all = 0;
    for (int kind = 0; kind < KINDS; kind++)
        all += counts[kind];
    truth_begin();
    truth_int("steps", steps);
    truth_int("executions", all);
    truth_num("seconds", to - from - evaluating);
    truth_end(argv[1]);
    return 0;
}
