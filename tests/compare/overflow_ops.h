/* Overrides: ops whose rows are made larger, ops as an engine computes them in binary16, and rows that are not finite without an overflow. */
#ifndef FD_TESTS_COMPARE_OVERFLOW_OPS_H
#define FD_TESTS_COMPARE_OVERFLOW_OPS_H

#include "model/graph.h"
#include "exec/exec.h"

void by_150(const fd_op_args *args);
void by_8000(const fd_op_args *args);
void by_25800(const fd_op_args *args);
void by_a_million(const fd_op_args *args);
void by_nothing(const fd_op_args *args);
void there_and_back(const fd_op_args *args);
void of_half(const fd_op_args *args);
void to_half(const fd_op_args *args);
void squares(const fd_op_args *args);
void sums_of_squares(const fd_op_args *args);
void summed_in_half(const fd_op_args *args);
void softmax_without_max(const fd_op_args *args);
void without_eps(const fd_op_args *args);
void row_two_is_nan(const fd_op_args *args);
void row_two_is_masked(const fd_op_args *args);

#endif
