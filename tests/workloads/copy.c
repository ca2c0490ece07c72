/* Copies a file inside the kernel: copy TRUTH FILE DIR [TIMES]
 * sendfile and copy_file_range from file to file, splice from file to pipe and from pipe to file.
 */
#include "wl.h"
#include <sys/sendfile.h>

int main(int argc, char **argv)
{
    int times = argc > 4 ? atoi(argv[4]) : 4;
    struct tally t = {0};
    struct count send = {0}, range = {0}, into_pipe = {0}, from_pipe = {0};
    char out[4096];
    int pipes[2];
    if (pipe(pipes))
        die("pipe");
    fcntl(pipes[1], F_SETPIPE_SZ, 65536);
    gate_begin();
    for (int i = 0; i < times; i++) {
        int from = counted_open(&t, argv[2], O_RDONLY);
        ssize_t n;
        snprintf(out, sizeof out, "%s/sendfile.%d", argv[3], i);
        int to = counted_open(&t, out, O_WRONLY | O_CREAT | O_TRUNC);
        do {
            n = sendfile(to, from, NULL, 32768);
            add(&send, n);
        } while (n > 0);
        counted_close(&t, to);

        snprintf(out, sizeof out, "%s/range.%d", argv[3], i);
        to = counted_open(&t, out, O_WRONLY | O_CREAT | O_TRUNC);
        loff_t at = 0;
        do {
            n = syscall(SYS_copy_file_range, from, &at, to, NULL, 40000, 0);
            add(&range, n);
        } while (n > 0);
        counted_close(&t, to);

        snprintf(out, sizeof out, "%s/splice.%d", argv[3], i);
        to = counted_open(&t, out, O_WRONLY | O_CREAT | O_TRUNC);
        at = 0;
        for (;;) {
            n = splice(from, &at, pipes[1], NULL, 16384, 0);
            add(&into_pipe, n);
            if (n <= 0)
                break;
            for (ssize_t left = n; left > 0;) {
                ssize_t m = splice(pipes[0], NULL, to, NULL, left, 0);
                add(&from_pipe, m);
                if (m <= 0)
                    die("splice");
                left -= m;
            }
        }
        counted_close(&t, to);
        counted_close(&t, from);
    }
    gate_end();
    truth_begin();
    truth_tally("total", &t);
    truth_count("sendfile", &send);
    truth_count("copy_file_range", &range);
    truth_count("splice_to_pipe", &into_pipe);
    truth_count("splice_from_pipe", &from_pipe);
    truth_end(argv[1]);
    return 0;
}
