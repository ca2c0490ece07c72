/* Has many files open at a time: held TRUTH DIR ROUNDS [-t]
 * In each round it opens every file of a directory, reads each once, at once in every second round and else when all are open, and closes them all;
 * with -t another thread closes them, while the first waits for it. So who closes a descriptor did not use it a moment ago.
 */
#include "wl.h"
#include <semaphore.h>

static int fds[1024], count;
static struct tally tally;
static sem_t opened, closed;

static void close_all(void)
{
    for (int f = 0; f < count; f++)
        counted_close(&tally, fds[f]);
}

static void *closer(void *unused)
{
    for (;;) {
        sem_wait(&opened);
        close_all();
        sem_post(&closed);
    }
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 98;
    struct listing listing = list_dir(argv[2]);
    int rounds = atoi(argv[3]), threads = argc > 4;
    static char buffer[65536];
    pthread_t thread;
    count = listing.count < 1024 ? listing.count : 1024;
    sem_init(&opened, 0, 0);
    sem_init(&closed, 0, 0);
    if (threads && pthread_create(&thread, NULL, closer, NULL))
        die("pthread_create");
    gate_begin();
    for (int r = 0; r < rounds; r++) {
        for (int f = 0; f < count; f++) {
            if ((fds[f] = counted_open(&tally, listing.paths[f], O_RDONLY)) < 0)
                die(listing.paths[f]);
            if (r % 2)
                add(&tally.read, read(fds[f], buffer, sizeof buffer));
        }
        for (int f = 0; f < count && r % 2 == 0; f++)
            add(&tally.read, read(fds[f], buffer, sizeof buffer));
        if (threads) {
            sem_post(&opened);
            sem_wait(&closed);
        } else {
            close_all();
        }
    }
    gate_end();
    truth_begin();
    truth_tally("total", &tally);
    truth_end(argv[1]);
    return 0;
}
