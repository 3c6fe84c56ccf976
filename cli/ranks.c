#include "cli/ranks.h"

#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/guard.h"
#include "mpi/mpi.h"

static fd_peers *peers;
static int32_t rank, n_rank = 1;

fd_code fd_cli_ranks_begin(const char *command, int shared, fd_error *err) {
    if (!fd_mpi_started(&rank, &n_rank)) {
        rank = 0;
        n_rank = 1;
        return FD_OK;
    }
    if (!shared)
        return fd_fail(err, FD_ERR_UNSUPPORTED,
                       "firstdiff %s runs as one process; under mpirun there are run and compare", command);
    /* CUDA loads a kernel when it is first launched, for which it waits for the device, and so without bound for a process that the
     * device waits for. Read when CUDA starts. */
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    int nowhere = rank > 0 ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
    if (nowhere >= 0) {
        dup2(nowhere, STDOUT_FILENO);
        close(nowhere);
    }
    return FD_OK;
}

fd_code fd_cli_ranks_join(fd_error *err) {
    return peers || n_rank == 1 ? FD_OK : fd_mpi_begin(&peers, err);
}

fd_peers *fd_cli_peers(void) {
    return peers;
}

int fd_cli_rank(void) {
    return rank;
}

int fd_cli_local_rank(void) {
    return n_rank > 1 ? fd_mpi_local_rank() : 0;
}

int fd_cli_n_rank(void) {
    return n_rank;
}

int fd_cli_ranks_n_thread(void) {
    if (n_rank == 1 || getenv("OMP_NUM_THREADS")) return 0;
    cpu_set_t set;
    long all = sysconf(_SC_NPROCESSORS_ONLN), own = 1;
    if (sched_getaffinity(0, sizeof set, &set) == 0) own = CPU_COUNT(&set);
    long share = all / fd_mpi_n_local(); /* mpirun may have bound each process to a core, or several to one socket */
    if (share > own) share = own;
    return share > 1 ? (int)share : 1;
}

int fd_cli_ranks_end(int status) {
    const bool failed = status == FD_EXIT_UNUSABLE;
    if (peers && failed) fd_cli_finish_streams();
    fd_mpi_end(peers, failed ? status : 0);
    peers = NULL;
    return rank > 0 && !failed ? FD_EXIT_SAME : status; /* a verdict is the first one's to give */
}
