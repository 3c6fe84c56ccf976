#include "cli/bisect/process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* In the child: never returns. */
static void become(const fd_process *p, int output, int failed) {
    int nothing = open("/dev/null", O_RDWR);
    if (nothing >= 0) dup2(nothing, STDIN_FILENO);
    if (p->quiet && nothing >= 0) dup2(nothing, STDOUT_FILENO), dup2(nothing, STDERR_FILENO);
    if (output >= 0) dup2(output, STDOUT_FILENO);
    if ((!p->folder || chdir(p->folder) == 0) && (!p->variable || putenv((char *)(uintptr_t)p->variable) == 0))
        execvp(p->argv[0], (char *const *)(uintptr_t)p->argv);
    int why = errno;
    ssize_t ignored = write(failed, &why, sizeof why);
    (void)ignored;
    _exit(127);
}

static void take_output(const fd_process *p, int from) {
    size_t at = 0;
    char rest[4096];
    for (;;) {
        bool full = at + 1 >= p->size;
        ssize_t n = read(from, full ? rest : p->output + at, full ? sizeof rest : p->size - 1 - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        if (!full) at += (size_t)n;
    }
    p->output[at] = '\0';
}

fd_code fd_process_run(const fd_process *p, int *status, fd_error *err) {
    int output[2] = {-1, -1}, failed[2], why = 0, how = 0;
    if ((p->output && pipe2(output, O_CLOEXEC) != 0) || pipe2(failed, O_CLOEXEC) != 0)
        return fd_fail(err, FD_ERR_IO, "%s: no pipe: %s", p->argv[0], strerror(errno));
    pid_t child = fork();
    if (child == 0) become(p, output[1], failed[1]);
    why = child < 0 ? errno : 0;
    close(failed[1]);
    if (output[1] >= 0) close(output[1]);
    if (child > 0 && p->output) take_output(p, output[0]);
    if (child > 0 && read(failed[0], &why, sizeof why) != sizeof why) why = 0;
    close(failed[0]);
    if (output[0] >= 0) close(output[0]);
    while (child > 0 && waitpid(child, &how, 0) < 0 && errno == EINTR) {}
    if (why) return fd_fail(err, FD_ERR_IO, "%s: cannot be run: %s", p->argv[0], strerror(why));
    *status = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + WTERMSIG(how);
    return FD_OK;
}
