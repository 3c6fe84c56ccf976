/* The vectorised kernels of one instruction set. Other ops run their scalar kernel, compiled for that set. */
#include "reference_cpu/simd.h"

void SIMD(rms_norm)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(attn_scores)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(attn_softmax)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(attn_mix)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(silu_mul)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(expert_matmul)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(matmul_f64)(const fd_op_args *args, int64_t begin, int64_t end);
void SIMD(expert_matmul_f64)(const fd_op_args *args, int64_t begin, int64_t end);

extern const fd_ref_ops SIMD(ops);
const fd_ref_ops SIMD(ops) = {{
    [FD_OP_RMS_NORM] = SIMD(rms_norm),
    [FD_OP_MATMUL] = SIMD(matmul),
    [FD_OP_ATTN_SCORES] = SIMD(attn_scores),
    [FD_OP_ATTN_SOFTMAX] = SIMD(attn_softmax),
    [FD_OP_ATTN_MIX] = SIMD(attn_mix),
    [FD_OP_SILU_MUL] = SIMD(silu_mul),
    [FD_OP_EXPERT_MATMUL] = SIMD(expert_matmul),
}};

extern const fd_ref_ops SIMD(ops_f64);
const fd_ref_ops SIMD(ops_f64) = {{
    [FD_OP_MATMUL] = SIMD(matmul_f64),
    [FD_OP_EXPERT_MATMUL] = SIMD(expert_matmul_f64),
}};
