/* Allocates from Python's object allocator and nothing else, called by pyspend.py with the GIL held. */
#include "wl.h"

extern void *PyObject_Malloc(size_t size);
extern void PyObject_Free(void *block);

/* Takes about so many seconds of CPU time; gives how many it took. */
double spend(double seconds)
{
    static void *blocks[4096];
    double begun = thread_cpu_s(), took;
    do {
        /* Asking for the time after each round would take 2 % of it. */
        for (int round = 0; round < 16; round++) {
            for (int i = 0; i < 4096; i++)
                blocks[i] = PyObject_Malloc(16 + (i & 480));
            for (int i = 0; i < 4096; i++)
                PyObject_Free(blocks[i]);
        }
        took = thread_cpu_s() - begun;
    } while (took < seconds);
    return took;
}
