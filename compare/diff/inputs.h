/* The inputs of a diverging node: was the error there before, or does it begin here? */
#ifndef FD_COMPARE_DIFF_INPUTS_H
#define FD_COMPARE_DIFF_INPUTS_H

#include "compare/diff/trace_pair.h"
#include "compare/verdict.h"

/* Adds an input to out->inputs. */
void fd_divergence_add_input(const char *name, fd_equality equality, fd_divergence *out);

/* Sets out->inputs_equal: unequal when one is, else unknown when one is or there is none. */
void fd_divergence_sum_inputs(fd_divergence *out);

/* Whether tensor `name` is the same in both traces wherever the diverging node at `pos` reads it: at `pos`, or, for
 * a K/V cache, at every position up to it. "tokens" are those that were fed. */
fd_code fd_input_equality(fd_trace_pair *pair, const char *name, bool cached, int32_t pos, fd_equality *out,
                          fd_error *err);

#endif
