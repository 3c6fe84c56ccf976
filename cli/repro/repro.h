/* The op that a verdict found wrong, alone: a test that needs nothing of firstdiff, with the smallest inputs that still
 * show it. */
#ifndef FD_CLI_REPRO_REPRO_H
#define FD_CLI_REPRO_REPRO_H

#include "cli/cli.h"
#include "compare/verdict.h"

/* Writes into `folder` (made when it is not there): the op's inputs and weights as .npy, expected.npy (the op in
 * binary64), candidate.npy (what the engine computed) and tau.npy (how far rounding may go) for up to eight elements
 * around the worst, test_op.py (NumPy, for pytest or alone), op.c (C, alone) and backend_ops.cpp (the same shapes as cases of ggml's
 * test-backend-ops). `trace` is that of the side that is
 * wrong. FD_ERR_INPUT where the verdict names no op that was replayed, FD_ERR_UNSUPPORTED where no test of the op can be
 * written, FD_ERR_INCOMPLETE where an input was not recorded. */
fd_code fd_cli_write_repro(const fd_graph *graph, const fd_trace *trace, const fd_verdict *verdict, const char *folder,
                           fd_error *err);

#endif
