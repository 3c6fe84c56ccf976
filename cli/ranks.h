/* The program as one of several processes that mpirun started: all run the same command, the first one prints and writes. */
#ifndef FD_CLI_RANKS_H
#define FD_CLI_RANKS_H

#include "exec/peers.h"

/* Called first. FD_ERR_UNSUPPORTED under mpirun for a command that runs as one process (`shared` false). Ranks from 1 on have
 * nothing to print: their standard output goes nowhere. */
fd_code fd_cli_ranks_begin(const char *command, int shared, fd_error *err);

/* Joins the others, once arguments are known to be right; fd_cli_peers is NULL without mpirun and before. */
fd_code fd_cli_ranks_join(fd_error *err);
fd_peers *fd_cli_peers(void);

/* 0 without mpirun; among the processes of this machine; how many there are, 1 without. */
int fd_cli_rank(void);
int fd_cli_local_rank(void);
int fd_cli_n_rank(void);

/* Threads for this process where nothing else is said: its part of the machine's processors. 0: as many as OpenMP takes, without
 * mpirun, or where OMP_NUM_THREADS says it. */
int fd_cli_ranks_n_thread(void);

/* Called last, with the exit status; returns the process's. One that says that the command failed ends the others. */
int fd_cli_ranks_end(int status);

#endif
