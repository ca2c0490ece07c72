/* Opens files through each of the calls that open: opens TRUTH TIMES OPEN OPENAT CREAT OPENAT2
 * Four directories, one for each of open(2), openat(2), creat(2) and openat2(2), so that none can stand for another.
 * Each file of a directory is opened TIMES times: by its whole path, and where the call takes one also below a descriptor
 * of its directory. What was opened is read to its end; what was created gets a few bytes. Each call fails once a round.
 */
#include "wl.h"
#include <linux/openat2.h>

#define WRITTEN 17

enum call { OPEN, OPENAT, CREAT, OPENAT2, CALLS };

static int opened(enum call call, int at, const char *path)
{
    struct open_how how = {.flags = O_RDONLY};
    switch (call) {
    case OPEN: return (int)syscall(SYS_open, path, O_RDONLY, 0);
    case OPENAT: return (int)syscall(SYS_openat, at, path, O_RDONLY, 0);
    case CREAT: return (int)syscall(SYS_creat, path, 0644);
    default: return (int)syscall(SYS_openat2, at, path, &how, sizeof how);
    }
}

static void use(struct tally *t, enum call call, int at, const char *path)
{
    static char buffer[65536];
    int fd = opened(call, at, path);
    add(&t->open, fd < 0 ? -1 : 0);
    if (fd < 0)
        die(path);
    ssize_t n;
    if (call == CREAT)
        add(&t->write, write(fd, buffer, WRITTEN));
    else
        do {
            n = read(fd, buffer, sizeof buffer);
            add(&t->read, n);
        } while (n > 0);
    counted_close(t, fd);
}

int main(int argc, char **argv)
{
    if (argc < 3 + CALLS)
        return 98;
    int times = atoi(argv[2]), folders[CALLS];
    struct listing listings[CALLS];
    struct tally tallies[CALLS] = {0}, all = {0};
    for (int c = 0; c < CALLS; c++) {
        listings[c] = list_dir(argv[3 + c]);
        folders[c] = open(argv[3 + c], O_RDONLY | O_DIRECTORY);
        if (folders[c] < 0)
            die(argv[3 + c]);
    }
    gate_begin();
    for (int c = 0; c < CALLS; c++)
        for (int r = 0; r < times; r++) {
            char missing[4096];
            snprintf(missing, sizeof missing, "%s/no/such", argv[3 + c]);
            int fd = opened(c, AT_FDCWD, missing);
            add(&tallies[c].open, fd < 0 ? -1 : 0);
            for (int f = 0; f < listings[c].count; f++) {
                const char *path = listings[c].paths[f];
                use(&tallies[c], c, AT_FDCWD, path);
                if (c == OPENAT || c == OPENAT2)
                    use(&tallies[c], c, folders[c], strrchr(path, '/') + 1);
            }
        }
    gate_end();
    truth_begin();
    for (int c = 0; c < CALLS; c++)
        add_tally(&all, &tallies[c]);
    truth_tally("total", &all);
    truth_open("dirs", '{');
    for (int c = 0; c < CALLS; c++)
        truth_tally(argv[3 + c], &tallies[c]);
    truth_close('}');
    truth_end(argv[1]);
    return 0;
}
