/* Runs a command in pid and mount namespaces of its own: inns SOURCE TARGET CMD...
 * Inside, SOURCE is bind-mounted on TARGET (a mount that the host does not see) and /proc is the new
 * pid namespace's. The command is pid 1 there.
 */
#include "wl.h"
#include <sys/mount.h>

int main(int argc, char **argv)
{
    if (argc < 4)
        return 98;
    if (unshare(CLONE_NEWPID | CLONE_NEWNS))
        die("unshare");
    pid_t pid = fork();
    if (pid == 0) {
        if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) && errno != EINVAL)
            die("mount private"); /* EINVAL: / is an initramfs, which is no mount point to the kernel */
        if (mount("proc", "/proc", "proc", 0, NULL) || mount(argv[1], argv[2], NULL, MS_BIND, NULL))
            die("mount");
        execv(argv[3], argv + 3);
        die(argv[3]);
    }
    close(0);
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
