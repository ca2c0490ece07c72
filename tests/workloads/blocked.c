/* Is in a read of a descriptor that is closed before the read returns: blocked TRUTH
 * The thread blocks before the start gate, so that nobody who watches from there on saw the call begin.
 */
#include "wl.h"

static int ends[2];

static void *reader(void *unused)
{
    char byte;
    if (read(ends[0], &byte, 1) != 1)
        die("read");
    return unused;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 98;
    pthread_t thread;
    if (pipe(ends) || pthread_create(&thread, NULL, reader, NULL))
        die("a thread that reads a pipe");
    sleep_ms(50); /* until it is in its call */
    gate_begin();
    close(ends[0]);
    if (write(ends[1], "x", 1) != 1)
        die("write");
    pthread_join(thread, NULL);
    gate_end();
    truth_begin();
    truth_end(argv[1]);
    return 0;
}
