/* The processes of one mpirun (exec/peers.h). Open MPI's library is loaded when a program was started by its mpirun with more than
 * one process, and only then: neither the build nor other runs need it.
 *
 *     fd_mpi_begin(&peers, err);   NULL: one process
 *     …                            fd_reference_options.peers = peers
 *     fd_mpi_end(peers, failed);   every process; one that failed ends the others */
#ifndef FD_MPI_MPI_H
#define FD_MPI_MPI_H

#include <stdbool.h>

#include "exec/peers.h"

/* Whether mpirun started this process together with others: its place among them, from 0. False: it did not. Without the
 * library. */
bool fd_mpi_started(int32_t *rank, int32_t *n);

/* Processes on this machine, 1 without mpirun; this one's place among them, from 0. */
int32_t fd_mpi_n_local(void);
int32_t fd_mpi_local_rank(void);

/* FD_ERR_UNSUPPORTED where Open MPI's library is not found or is another one. One process holds one at a time. */
fd_code fd_mpi_begin(fd_peers **out, fd_error *err);

/* Waits for the others and frees it. A process that failed does not wait: it ends all, with exit status `failed`, and does not
 * return. 0: it did not fail. NULL is fine. */
void fd_mpi_end(fd_peers *peers, int failed);

#endif
