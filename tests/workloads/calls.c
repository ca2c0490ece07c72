/* Each call of a family a number of times, some of them failing: calls TRUTH DIR [TIMES]
 * DIR is on a file system; what is made in it is removed again. Every call is made directly, so that the C library turns none into
 * another.
 */
#include "wl.h"
#include <linux/openat2.h>

#define FAMILIES(X) X(open) X(read) X(write) X(close) X(stat) X(getdents) X(fsync) X(rename) X(unlink)
#define DECLARE(name) static struct count c_##name;
FAMILIES(DECLARE)

static char base[4096], name[2][4200];
static const char *in(int slot, const char *what)
{
    snprintf(name[slot], sizeof name[slot], "%s/%s", base, what);
    return name[slot];
}
static int opened(int fd)
{
    add(&c_open, fd < 0 ? -1 : 0);
    return fd;
}
static void closed(int fd) { add(&c_close, syscall(SYS_close, fd)); }
static void stats(long result) { add(&c_stat, result < 0 ? -1 : 0); }
static void unlinks(long result) { add(&c_unlink, result < 0 ? -1 : 0); }
static void renames(long result) { add(&c_rename, result < 0 ? -1 : 0); }
static void syncs(long result) { add(&c_fsync, result < 0 ? -1 : 0); }

static void opens(void)
{
    struct open_how how = {.flags = O_RDWR | O_CREAT, .mode = 0644};
    closed(opened(syscall(SYS_creat, in(0, "made"), 0644)));
    closed(opened(syscall(SYS_open, in(0, "made"), O_RDONLY)));
    closed(opened(syscall(SYS_openat2, AT_FDCWD, in(0, "made"), &how, sizeof how)));
    how.flags = O_RDONLY, how.mode = 0;
    opened(syscall(SYS_openat2, AT_FDCWD, in(0, "missing"), &how, sizeof how));
    // Nothing: no file's call.
    syscall(SYS_close, -1);
}
static void moves(void)
{
    char a[3000] = {1}, b[700];
    struct iovec parts[2] = {{a, sizeof a}, {b, sizeof b}};
    int fd = opened(syscall(SYS_openat, AT_FDCWD, in(0, "made"), O_RDWR));
    add(&c_write, syscall(SYS_pwritev, fd, parts, 2, 0L, 0L));
    add(&c_write, syscall(SYS_pwritev2, fd, parts, 2, 100L, 0L, 0));
    add(&c_write, syscall(SYS_pwrite64, fd, a, 1000L, 5000L));
    add(&c_write, syscall(SYS_writev, fd, parts, 1));
    add(&c_read, syscall(SYS_preadv2, fd, parts, 2, 0L, 0L, 0));
    add(&c_read, syscall(SYS_preadv, fd, parts, 2, 3000L, 0L));
    add(&c_read, syscall(SYS_pread64, fd, a, 500L, 5900L));
    add(&c_read, syscall(SYS_read, fd, a, 10L));
    syncs(syscall(SYS_fsync, fd));
    syncs(syscall(SYS_fdatasync, fd));
    syncs(syscall(SYS_sync_file_range, fd, 0L, 0L, 0));
    syncs(syscall(SYS_syncfs, fd));
    char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        die("mmap");
    map[0]++;
    syncs(syscall(SYS_msync, map, 4096L, MS_SYNC));
    munmap(map, 4096);
    closed(fd);
    fd = opened(syscall(SYS_open, in(0, "made"), O_RDONLY));
    add(&c_write, syscall(SYS_write, fd, a, 10L)); /* EBADF: it is open for reading */
    closed(fd);
}
static void looks(void)
{
    struct stat st;
    struct statx stx;
    char link[256];
    stats(syscall(SYS_stat, in(0, "made"), &st));
    stats(syscall(SYS_lstat, in(0, "link"), &st));
    stats(syscall(SYS_newfstatat, AT_FDCWD, in(0, "made"), &st, AT_SYMLINK_NOFOLLOW));
    stats(syscall(SYS_statx, AT_FDCWD, in(0, "made"), 0, STATX_BASIC_STATS, &stx));
    stats(syscall(SYS_access, in(0, "made"), R_OK));
    stats(syscall(SYS_faccessat, AT_FDCWD, in(0, "made"), R_OK));
    stats(syscall(SYS_faccessat2, AT_FDCWD, in(0, "made"), R_OK, 0));
    stats(syscall(SYS_readlink, in(0, "link"), link, sizeof link));
    stats(syscall(SYS_readlinkat, AT_FDCWD, in(0, "link"), link, sizeof link));
    stats(syscall(SYS_stat, in(0, "missing"), &st));
    stats(syscall(SYS_statx, AT_FDCWD, in(0, "missing"), 0, STATX_BASIC_STATS, &stx));
    int fd = opened(syscall(SYS_open, base, O_RDONLY | O_DIRECTORY));
    stats(syscall(SYS_fstat, fd, &st));
    stats(syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH));
    char entries[4096];
    long n;
    do {
        n = syscall(SYS_getdents64, fd, entries, sizeof entries);
        add(&c_getdents, n);
    } while (n > 0);
    closed(fd);
}
static void names(void)
{
    unlinks(syscall(SYS_mkdir, in(0, "dir"), 0755));
    unlinks(syscall(SYS_mkdirat, AT_FDCWD, in(0, "dir/below"), 0755));
    unlinks(syscall(SYS_unlinkat, AT_FDCWD, in(0, "dir/below"), AT_REMOVEDIR));
    unlinks(syscall(SYS_rmdir, in(0, "dir")));
    renames(syscall(SYS_rename, in(0, "made"), in(1, "moved")));
    renames(syscall(SYS_renameat, AT_FDCWD, in(0, "moved"), AT_FDCWD, in(1, "again")));
    renames(syscall(SYS_renameat2, AT_FDCWD, in(0, "again"), AT_FDCWD, in(1, "made"), 0));
    renames(syscall(SYS_rename, in(0, "missing"), in(1, "moved")));
    unlinks(syscall(SYS_unlink, in(0, "made")));
    unlinks(syscall(SYS_unlink, in(0, "missing")));
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 98;
    int times = argc > 3 ? atoi(argv[3]) : 20;
    snprintf(base, sizeof base, "%s", argv[2]);
    if (symlink("made", in(0, "link")))
        die("symlink");
    gate_begin();
    for (int i = 0; i < times; i++) {
        opens();
        moves();
        looks();
        names();
    }
    gate_end();
    truth_begin();
#define TELL(name) truth_count(#name, &c_##name);
    FAMILIES(TELL)
    truth_end(argv[1]);
    return 0;
}
