/* What ggml's CPU kernels make of the factors of a dot product before they multiply: rows of int8 blocks beside
 * quantised weights, binary16 or bfloat16 beside such weights, binary16 beside a binary16 K/V cache. It follows from the
 * row alone, so a replay repeats it (classes with fd_numerics_class.replays_inputs), and an engine of that kind is held
 * to the bounds of binary32. Sources: ggml's quantize_row_q8_0, quantize_row_q8_K and type_traits_cpu.vec_dot_type. */
#ifndef FD_COMPARE_BOUNDS_DOT_INPUTS_H
#define FD_COMPARE_BOUNDS_DOT_INPUTS_H

#include "compare/bounds/numerics_class.h"
#include "exec/exec.h"

/* FD_DOT_INT8: as FD_DOT_Q8_0, but the scale stays in binary32; _64, _128: of blocks of so many elements; FD_DOT_INT8_ROW: it is that
 * of a row. FD_DOT_INT8_OF_BF16: of values that were rounded to bfloat16 before, ties to even. */
typedef enum fd_dot_type {
    FD_DOT_AS_IS,
    FD_DOT_F16,
    FD_DOT_BF16,
    FD_DOT_Q8_0,
    FD_DOT_Q8_K,
    FD_DOT_INT8,
    FD_DOT_INT8_64,
    FD_DOT_INT8_128,
    FD_DOT_INT8_ROW,
    FD_DOT_INT8_OF_BF16,
    FD_DOT_TF32,
    FD_DOT_TF32_CUT
} fd_dot_type;

/* How engines make int8 blocks of 32 otherwise, by mistake as a rule. */
typedef enum fd_block_rule {
    FD_BLOCKS_NEAREST = -1,   /* as they should be */
    FD_BLOCKS_CUT,            /* towards zero */
    FD_BLOCKS_DOWN,           /* to the next integer below */
    FD_BLOCKS_BY_128,         /* the largest element is 128, and is clamped to 127 */
    FD_BLOCKS_BY_128_CLAMPED, /* -128 to -127, too */
    FD_BLOCKS_ROW,            /* one scale a row */
    FD_BLOCKS_COUNT
} fd_block_rule;

/* Products with a weight. */
bool fd_dot_is_product(fd_op op);

/* Are the weight's values integers with scales, in the file or by the engine's own doing? */
bool fd_dot_is_of_integers(const fd_weight *weight);

/* Of input `slot`; FD_DOT_AS_IS where the class replays nothing. `weight`: the node's first. */
fd_dot_type fd_dot_type_of(const fd_numerics_class *numerics, const fd_node *node, const fd_weight *weight, int slot);

/* The same of q and of attention's weights, beside K or V of `kv_type` (FD_F32: as the class keeps them). */
fd_dot_type fd_dot_type_beside_cache(const fd_numerics_class *numerics, const fd_node *node, uint32_t kv_type);

/* The node's first weight as the file has it, by whose type a kernel rounds: bytes that a fault reads otherwise are of that type. */
const fd_weight *fd_dot_weight(const fd_op_args *args);

/* In place. Rows with NaN or Inf stay: a block has none. So do numbers beyond binary16's range: an engine of the class makes
 * Inf of them, and that is a finding, not how it rounds. */
void fd_dot_round(fd_dot_type type, float *rows, int64_t n_row, int64_t width);

/* The same of the first input of `reader`: of scores it may be Q times their scale that is rounded (fd_graph_scales_query). */
void fd_dot_round_input(fd_dot_type type, const fd_graph *graph, const fd_node *reader, float *rows, int64_t n_row,
                        int64_t width);

/* All of int8 blocks, but FD_DOT_INT8_ROW, by another rule. */
void fd_dot_round_by(fd_block_rule rule, fd_dot_type type, float *rows, int64_t n_row, int64_t width);

float fd_dot_round_f16(float x);

/* Engines keep these in a type of their own. */
bool fd_dot_is_head_or_router(const fd_node *node, const fd_weight *weight);

/* Rounds such a class this product's factors as replay repeats it? Not those of routers and of the logits, which engines of 16 bits
 * often leave in binary32. */
bool fd_dot_repeats_factors(const fd_numerics_class *numerics, const fd_node *node, const fd_weight *weight);

/* All of the weight in binary32, rounded so: rows [n_row][n_col]. */
void fd_dot_widen_weight(fd_dot_type type, const fd_weight *weight, float *rows);

/* *out is the weight as the class multiplies it, in binary32, its data owned by the caller; data NULL: it stays as it is. */
fd_code fd_dot_round_weight(const fd_numerics_class *numerics, const fd_node *node, const fd_weight *weight,
                            fd_weight *out, fd_error *err);

/* Does the class round otherwise than one before it does, beside this model's weights? */
bool fd_class_is_another(const fd_numerics_class *numerics, const fd_graph *graph);

/* Some product of the model reads int8 blocks. */
bool fd_class_makes_blocks(const fd_numerics_class *numerics, const fd_graph *graph);

/* ggml's CPU kernels read GELU from a table by its argument in binary16, which has binary16 values; from 10 on it is the
 * argument, up to -10 it is 0 (ggml_vec_gelu_f32, ggml_vec_geglu_f32). */
bool fd_gelu_is_table(const fd_numerics_class *numerics, const fd_node *node);

/* Elements of a block beside rows of n_col; 1 for float types. */
int64_t fd_dot_block(fd_dot_type type, int64_t n_col);
bool fd_dot_is_blocks(fd_dot_type type);

#endif
