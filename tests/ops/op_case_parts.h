/* Between op_case.c, whose parts cases are made of, and the files of more cases and of their runs. */
#ifndef FD_TESTS_OPS_OP_CASE_PARTS_H
#define FD_TESTS_OPS_OP_CASE_PARTS_H

#include "tests/ops/op_case.h"

/* Memory and random floats that live as long as the case. */
void *case_own(const op_case *c, size_t bytes);
float *case_floats(op_case *c, int64_t n);
op_case *case_new(fd_op op, int32_t pos0, int32_t n_pos);
void case_set_input(op_case *c, int i, float *data, int64_t n, int32_t n_dim, int32_t shape0, int32_t shape1);
void case_set_weight(op_case *c, int i, uint32_t dtype, int64_t n_row, int64_t n_col);
void case_set_shape(op_case *c, int32_t n_dim, int32_t shape0, int32_t shape1);
void case_set_heads(op_case *c, int i, int32_t n_head, int32_t n);

#endif
