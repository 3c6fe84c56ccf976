/* The scalar kernels of one number type and one instruction set, from ops.def: an op without a function does not
 * link. */
#include "reference_cpu/real.h"

#define FD_OP(ENUM, name, n_input, summary) void REF(name)(const fd_op_args *args, int64_t begin, int64_t end);
#include "model/ops.def"
#undef FD_OP

extern const fd_ref_ops REF(ops);
const fd_ref_ops REF(ops) = {{
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = REF(name),
#include "model/ops.def"
#undef FD_OP
}};
