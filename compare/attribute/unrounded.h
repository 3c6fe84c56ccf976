/* Compiled and fused kernels record a tensor in 16 bits and go on with what they had in registers before: beside the recorded rows, what
 * reads them then leaves more than rounding does. Which tensors are read unrounded, the values say: replayed from these as the ops
 * before give them, the readers leave less of every layer's rows. */
#ifndef FD_COMPARE_ATTRIBUTE_UNROUNDED_H
#define FD_COMPARE_ATTRIBUTE_UNROUNDED_H

#include "compare/attribute/row_errors.h"

typedef struct fd_unrounded fd_unrounded;

/* A few dozen replays of some of the ops, and the weights in 16 bits: not of a large model, or a long run. */
bool fd_unrounded_can_ask(const fd_attribution_options *candidate);

/* The options are borrowed; their class is one of 16-bit tensors. Freed with fd_unrounded_free (NULL is fine). */
fd_code fd_unrounded_open(const fd_attribution_options *candidate, fd_unrounded **out, fd_error *err);
void fd_unrounded_free(fd_unrounded *unrounded);

/* Where it is shown of all nodes of this kind, `errors` (NULL is fine), those of the candidate, become what is left then, and *shown is true. Steps of
 * one token are asked apart from others, because these have kernels of their own. */
fd_code fd_unrounded_inputs(fd_unrounded *unrounded, int32_t node, fd_row_errors *errors, bool *shown, fd_error *err);

/* The same of an engine that computes in binary32 and records 16 bits, but for some tensors: which these are is found once, for all
 * nodes. */
fd_code fd_unrounded_stream(fd_unrounded *unrounded, int32_t node, fd_row_errors *errors, bool *shown, fd_error *err);

/* Is it, of what `node` reads? */
fd_code fd_reads_unrounded(const fd_attribution_options *candidate, int32_t node, bool *yes, fd_error *err);

#endif
