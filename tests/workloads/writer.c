/* Writes as a checkpoint does: writer TRUTH DIR [FILES] [CHUNKS] [CHUNK]
 * write, pwrite, writev, pwritev2 in turn; fsync, fdatasync, then rename and one rename that fails.
 */
#include "wl.h"

int main(int argc, char **argv)
{
    int files = argc > 3 ? atoi(argv[3]) : 4, chunks = argc > 4 ? atoi(argv[4]) : 32;
    size_t chunk = argc > 5 ? strtoul(argv[5], NULL, 0) : 65536;
    struct tally t = {0};
    struct count sync = {0}, renames = {0};
    char *data = malloc(chunk), temp[4096], final[4096];
    memset(data, 'x', chunk);
    struct iovec parts[2] = {{data, chunk / 3}, {data + chunk / 3, chunk - chunk / 3}};
    gate_begin();
    for (int f = 0; f < files; f++) {
        snprintf(temp, sizeof temp, "%s/state.%d.tmp", argv[2], f);
        snprintf(final, sizeof final, "%s/state.%d.ckpt", argv[2], f);
        int fd = counted_open(&t, temp, O_WRONLY | O_CREAT | O_TRUNC);
        off_t at = 0;
        for (int c = 0; c < chunks; c++) {
            ssize_t n;
            lseek(fd, at, SEEK_SET);
            switch (c % 4) {
            case 0: n = write(fd, data, chunk); break;
            case 1: n = pwrite(fd, data, chunk, at); break;
            case 2: n = writev(fd, parts, 2); break;
            default: n = pwritev2(fd, parts, 2, at, 0); break;
            }
            add(&t.write, n);
            at += n;
        }
        double a = now_s();
        add(&sync, f % 2 ? fdatasync(fd) : fsync(fd));
        sync.seconds += now_s() - a;
        counted_close(&t, fd);
        switch (f % 3) {
        case 0: add(&renames, syscall(SYS_rename, temp, final)); break;
        case 1: add(&renames, syscall(SYS_renameat, AT_FDCWD, temp, AT_FDCWD, final)); break;
        default: add(&renames, syscall(SYS_renameat2, AT_FDCWD, temp, AT_FDCWD, final, 0)); break;
        }
        add(&renames, syscall(SYS_rename, temp, final)); /* temp is gone: ENOENT */
    }
    gate_end();
    truth_begin();
    truth_tally("total", &t);
    truth_count("fsync", &sync);
    truth_count("rename", &renames);
    truth_end(argv[1]);
    return 0;
}
