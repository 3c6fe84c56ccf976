/* One node with random inputs, built by hand, for tests of single ops. Every buffer is malloc'ed at its exact size, so
 * that a sanitizer sees an access past it. What is made here lives until case_free or the end of the test, which is a
 * process of its own. */
#ifndef FD_TESTS_OPS_OP_CASE_H
#define FD_TESTS_OPS_OP_CASE_H

#include "reference_cpu/ops.h"
#include "reference_cpu/reference.h"

typedef struct op_case {
    fd_graph graph;
    fd_node nodes[3]; /* inputs 0 and 1, the node under test 2 */
    fd_weight weights[2];
    fd_op_args args; /* binary32; args.out is not set */
    float *in[2];    /* what args.in points to */
    int64_t n_in[2], n_out;
    struct case_memory *memory; /* all that the case and its runs allocate */
    uint64_t seed;
} op_case;

op_case *case_embed(uint32_t dtype, int32_t n_vocab, int32_t n_embd, int32_t n_pos);
op_case *case_norm(uint32_t dtype, int32_t n, int32_t n_pos, float eps);
/* Of [n_head, head_dim], head by head. */
op_case *case_head_norm(int32_t head_dim, int32_t n_head, int32_t n_pos);
/* `bias`: dtype of the bias, or -1 for none. */
op_case *case_matmul(uint32_t dtype, int32_t n_in, int32_t n_out, int32_t n_pos, int bias);
op_case *case_rope(fd_rope_pairing pairing, int32_t n_rot, int32_t n_head, int32_t head_dim, int32_t pos0,
                   int32_t n_pos);
op_case *case_kv_write(int32_t width, int32_t pos0, int32_t n_pos, int32_t n_ctx, int32_t row_offset);
/* FD_OP_ATTN_SCORES, FD_OP_ATTN_SOFTMAX or FD_OP_ATTN_MIX. */
op_case *case_attention(fd_op op, int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t pos0, int32_t n_pos);
/* FD_OP_SILU_MUL, FD_OP_GELU_MUL, FD_OP_SWIGLU_CLAMP (slope 1.702, limit 7) or FD_OP_ADD. */
op_case *case_elementwise(fd_op op, int32_t n, int32_t n_pos);
/* FD_OP_SCALE (by 11.3137), FD_OP_SOFTCAP (at 30) or FD_OP_SOFTMAX. */
op_case *case_unary(fd_op op, int32_t n, int32_t n_pos);

/* Experts: 8 of them, 3 chosen, no two ids of a position the same. */
enum { CASE_EXPERTS = 8, CASE_CHOSEN = 3 };
op_case *case_top_k(int32_t n_pos);
op_case *case_expert_weights(fd_gating gating, float scale, int32_t n_pos);
/* own_rows: every chosen expert reads a row of its own, as ffn_down does. */
op_case *case_expert_matmul(uint32_t dtype, int32_t n_in, int32_t n_out, int32_t n_pos, bool own_rows, int bias);
op_case *case_expert_sum(int32_t n, int32_t n_pos);

/* 4 heads of 48 elements: FD_OP_SLICE takes 20 of them from the 8th on; FD_OP_CONCAT adds 16 from one head (shared) or
 * from as many. */
op_case *case_slice(int32_t n_pos);
op_case *case_concat(bool shared, int32_t n_pos);
op_case *case_head_matmul(uint32_t dtype, int32_t n_in, int32_t n_out, int32_t n_pos); /* 3 heads */

/* Over a cache of pos0 + n_pos rows: 40 channels, 4 taps, with bias; 4 heads of 6 channels in 2 groups, a state of 8.
 * Each head has one decay, or one for each element of its state. */
op_case *case_conv(int32_t pos0, int32_t n_pos);
op_case *case_ssm_scan(bool each_state, int32_t pos0, int32_t n_pos);

/* Over such a cache: 40 elements; 2 key heads of 8 with 2 value heads of 6 each, keys of length 1, scale 0.375; 3 heads
 * of 8. */
op_case *case_token_shift(int32_t pos0, int32_t n_pos);
op_case *case_gated_delta(int32_t pos0, int32_t n_pos);
op_case *case_wkv7(int32_t pos0, int32_t n_pos);

/* Gives a case of FD_OP_ATTN_SOFTMAX sinks. */
void case_add_sinks(op_case *c, uint32_t dtype);
void case_free(op_case *c); /* with the outputs of its runs; only tests of many cases need it */

/* Uniform in [-1, 1). */
float case_random(op_case *c);

/* The node's output, the case's, filled with a mark before the op runs; `ops` runs it in n_part ranges of items. */
float *case_run(const op_case *c, const fd_ref_ops *ops, int n_part);
double *case_run_f64(const op_case *c);
/* case_run with the scalar kernels. */
float *case_run_scalar(const op_case *c);
/* The test fails unless the twins of every instruction set here have the scalar kernels' bits, in as many ranges as
 * n_parts says, ended by 0. */
void case_expect_twins(const op_case *c, fd_numerics numerics, const int *n_parts, const char *what);
/* The same of binary64. */
void case_expect_f64_twins(const op_case *c, const int *n_parts, const char *what);

/* Elements whose bits differ, every NaN being the same. */
int64_t bits_differ(const float *a, const float *b, int64_t n);

/* The larger of two errors; a NaN is the largest and stays. */
static inline double worse(double so_far, double z) {
    return so_far != so_far || z <= so_far ? so_far : z;
}

/* Row `row` of a weight of the case, dequantised, the case's. */
float *case_weight_row(const op_case *c, int weight, int64_t row);

#endif
