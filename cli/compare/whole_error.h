/* Under NOISE: is the error of the logits, the sum of all the others, one that rounding leaves? Bounds of single ops have room for
 * errors in one direction that add up. And of an engine of 16-bit tensors: is each tensor's own (compare/attribute/local_errors.h)? */
#ifndef FD_CLI_COMPARE_WHOLE_ERROR_H
#define FD_CLI_COMPARE_WHOLE_ERROR_H

#include "cli/compare/compare_pair.h"

/* Runs the model as an engine of the verdict's class rounds (emulate/emulate.h) on the candidate's tokens, and sets the candidate's NMSE
 * against its, the middle row's too, of all and of the steps after the first; where experts are chosen, the middle row's alone. A verdict of noise becomes
 * one that cannot tell where it is too large. Asks nothing where the class or the cache's blocks are not emulated, the reference is not exact, or
 * a run would take long. */
fd_code fd_cli_check_whole_error(const fd_cli_pair *pair, fd_verdict *verdict, fd_error *err);

#endif
