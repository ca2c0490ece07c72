/* A training loop on data in memory, as far as its backward passes go: passes TRUTH LIBRARY STEPS STEP_MS
 * LIBRARY is torchlike.c, built as libtorch_cpu.so. Each step computes, then begins a pass, inside of which two others begin, one of them with
 * one inside (checkpointed parts of a model). Stretches with names begin around it, of which one is an update. Each seventh step's pass is left by a jump, as by an exception. Two passes to warm up are begun
 * from less deep in the stack.
 */
#include "wl.h"
#include <dlfcn.h>
#include <setjmp.h>

#define EXCEPTIONAL 7
#define NAME "_ZN5torch8autograd6Engine7executeERKSt6vectorINS0_4EdgeESaIS3_EERKS2_IN2at6TensorESaIS9_EEbbbS7_"

#define SCOPE "_ZN5torch8autograd8profiler25record_function_enter_newERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEERKSt8optionalIS7_E"

static void (*execute)(void (*inside)(int), int depth);
static void (*scope)(void **result, const char **name);
static jmp_buf caught;
static double step_s;
static uint64_t begun, left, updates, step;
static volatile double sink;

static void compute(double seconds)
{
    double end = thread_cpu_s() + seconds;
    while (thread_cpu_s() < end)
        for (int i = 0; i < 1000; i++)
            sink += i * 1e-9;
}

static void inside(int depth)
{
    begun++;
    compute(step_s / 8);
    if (!depth)
        return;
    execute(inside, depth - 1);
    execute(inside, 0);
    if (depth == 2 && step % EXCEPTIONAL == EXCEPTIONAL - 1) {
        left++;
        longjmp(caught, 1);
    }
}

static void begin_scope(const char *name)
{
    void *result;
    scope(&result, &name);
}

static __attribute__((noinline)) void loop(uint64_t steps)
{
    volatile char room[4096] = { 0 };
    for (step = 0; step < steps; step++) {
        compute(step_s / 2);
        begin_scope("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__");
        if (!setjmp(caught))
            execute(inside, 2);
        begin_scope("Optimizer.step#AdamW.step");
        updates++;
        begin_scope("Optimizer.zero_grad#AdamW.zero_grad");
        room[step % sizeof room] = 1;
    }
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: passes TRUTH LIBRARY STEPS STEP_MS\n");
        return 97;
    }
    void *library = dlopen(argv[2], RTLD_NOW);
    if (library)
        *(void **)&execute = dlsym(library, NAME), *(void **)&scope = dlsym(library, SCOPE);
    if (!execute || !scope) {
        fprintf(stderr, "workload: %s\n", dlerror());
        return 97;
    }
    uint64_t steps = strtoull(argv[3], NULL, 10);
    step_s = atof(argv[4]) / 1e3;
    gate_begin();
    for (int i = 0; i < 2; i++)
        execute(inside, 0);
    double from = now_s();
    loop(steps);
    double to = now_s();
    gate_end();
    truth_begin();
    truth_int("steps", steps);
    truth_int("passes", begun);
    truth_int("left", left);
    truth_int("updates", updates);
    truth_num("seconds", to - from);
    truth_end(argv[1]);
    return 0;
}
