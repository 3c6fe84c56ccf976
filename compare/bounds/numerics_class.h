/* Candidate classes: where an engine rounds, and to how many bits. A bound (bounds.h) is computed for a class.
 *
 * u is a unit roundoff: a result rounded to nearest is off by at most u·|x| (2⁻²⁴ binary32, 2⁻¹¹ binary16, 2⁻⁸
 * bfloat16). A zero u means that nothing is rounded there. */
#ifndef FD_COMPARE_BOUNDS_NUMERICS_CLASS_H
#define FD_COMPARE_BOUNDS_NUMERICS_CLASS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct fd_numerics_class {
    const char *name; /* "f16", as given to --candidate */
    const char *summary;
    bool exact; /* the numerics contract: replayed in its own order, no tolerance at all */
    /* As llama.cpp: int8 blocks before a quantised matmul, the weight's own type before a float one. */
    bool q8_activations;
    /* Scores and weights stay inside one kernel, in binary32 (weights rounded as factors of the weighted sum). */
    bool fused_attention;
    /* As ggml's CPU kernels round what goes into a dot product, which a replay repeats (dot_inputs.h); then u_in and
     * u_attn are 0. */
    bool replays_inputs;
    bool own_attention; /* but q and attention's weights stay in binary32 */
    int32_t
        own_block; /* but scales of int8 blocks stay in binary32, and all blocks have so many elements; 0: as ggml's */
    bool plain_products; /* but factors of products with weights stay as they are */
    bool in_truncates;   /* inputs may be cut instead of rounded: the error has a mean */
    double u_in;         /* both factors of a matrix product, once they are read */
    double u_attn;       /* both factors of scores and of the weighted sum of V */
    double tiny_in;      /* spacing of the subnormals of those factors' type */
    double u_acc;        /* each addition of a dot product */
    double u_mix;        /* each addition of the weighted sum of V, where it is coarser than u_acc; else 0 */
    bool
        sums_in_turn; /* and a replay repeats them, key after key (replay/flash_sums.c); only bounds have room for them */
    double u_op;      /* each operation of the other ops */
    double u_out;     /* every stored result */
    double tiny_out;  /* spacing of its type's subnormals, or what an engine flushes to 0 */
    double u_kv;      /* rows of the K/V cache */
    double u_acc_f16; /* each addition of a product with binary16 weights, where it is coarser than u_acc; else 0 */
    bool
        either; /* each product with a weight rounds its factors by u_in, or not at all: values tell (replay/factors.h) */
    bool all_products; /* u_factor is true of logits and routers, too */
    bool several_rows; /* u_factor is true of calls of several rows alone (replay/several_rows.h), of attention too */
    double u_factor;   /* both factors of products with weights, which a replay repeats; logits' and routers' may be */
    bool
        int8_rows; /* these factors are int8, with a scale in binary32 for each row of activations; u_factor: about what
                           that is */
    bool int8_weights; /* and for each row of weights; else these stay as they are */
    double
        u_product; /* a product before its bias, or scores' scale, which a replay repeats; 0: not rounded there. Of no row of
                          the table: attribute/unrounded.h asks for it */
    double u_shown;    /* results whose recorded values all have so few bits, and results that are not recorded */
    bool typical;      /* bounds are what roundings leave as a rule (fd_numerics_class_typical) */
    bool cuda_kernels; /* products are those of ggml's CUDA kernels, chosen by a call's rows (replay/cuda_kernels.h) */
    bool fast_math;    /* sin, cos and pow of a GPU's special function unit, as nvcc's -use_fast_math takes */
} fd_numerics_class;

/* Rows of an unrecorded cache are rounded to binary16 by the replay itself, because nothing else is done to them. */
bool fd_class_repeats_cache(const fd_numerics_class *class_);
/* Its weighted sum of V is kept in 16 bits in an order that no replay repeats: there is room for a bug in it. */
bool fd_class_has_room_in_mix(const fd_numerics_class *class_);

/* Sums of products live in 16 bits: then results that no op rounds have 16-bit values. */
bool fd_class_sums_in_16_bits(const fd_numerics_class *class_);

/* A replay repeats roundings to steps, of inputs or of cache rows: a value near the middle between two may go either way. */
bool fd_class_rounds_to_steps(const fd_numerics_class *class_);

/* Of a row's size: what another order of sums leaves of it, if all values that are rounded to steps went to the same ones. 10^-7 was measured of a
 * layer, 10^-6 of a deep model's logits. Of a row that is right but for one such value, or more, FD_FAR_FROM_LAST_BITS times that is left. */
#define FD_LAST_BITS          0x1p-16
#define FD_FAR_FROM_LAST_BITS 64.0

/* Does replay leave nothing but binary32's own rounding of a sound engine of this class? */
bool fd_class_leaves_nothing(const fd_numerics_class *class_);

/* The rows in order of strictness: exact, f64, f32, ggml-cpu-f32kv, ggml-cuda-f32kv, int8-f32kv, int8-64-f32kv, int8-128-f32kv, int8-rows, w8a8, f16-f32kv, bf16-f32kv, f16-gemm, bf16-gemm, tf32-gemm, tf32-gemm-eager, f16kv, ggml-cpu-f16kv,
 * int8-f16kv, int8-64-f16kv, int8-128-f16kv, int8-rows-f16kv, w8a8-f16kv, f16-attention, ggml-cpu, ggml-cuda, ggml-cpu-fa, ggml-cuda-fa, f16, mixed-f16, tf32, tf32-cut, q8, llama-cpu, fast-int8, llama-cpu-fa, llama-cuda, bf16, mixed-bf16, int8-bf16, hf-f16-fa, hf-f16, hf-bf16-fa, hf-bf16, f16acc.
 * A name without an engine rounds in one place alone; NULL past the end. */
const fd_numerics_class *fd_numerics_class_at(int32_t i);

/* `class_` where an op's result has as few bits as u_shown says. */
fd_numerics_class fd_numerics_class_shown(const fd_numerics_class *class_);

/* The class of the ops between q, k, v and attn_out: binary32 where a fused kernel keeps them to itself; else `class_`
 * itself. */
fd_numerics_class fd_numerics_class_inside_attention(const fd_numerics_class *class_);

/* The same roundings, for bounds that are not λ standard deviations but one, of sums added in any order: so large errors are as a
 * rule, and one far beyond is no rounding though the bound has room for it. */
fd_numerics_class fd_numerics_class_typical(const fd_numerics_class *class_);

/* By name or by what traces record ("q8act", "fp16", "emulate-f16:7" …); NULL for an unknown name, and for "". */
const fd_numerics_class *fd_numerics_class_find(const char *name);
/* Of NAME-fa, whose attention is fused: NAME, which rounds as it does elsewhere; of any other, itself. */
const fd_numerics_class *fd_class_unfused(const fd_numerics_class *numerics);
/* The same class with K and V kept in binary16; NULL where there is none. */
const fd_numerics_class *fd_class_with_f16_cache(const fd_numerics_class *numerics);

/* "exact, f64, f32, …" for messages; returns `to`. */
const char *fd_numerics_class_names(char *to, int32_t size);

/* The unit roundoff and the spacing of the subnormals of an element type; 0 for binary64 and for integers. */
double fd_dtype_roundoff(uint32_t dtype);
double fd_dtype_tiny(uint32_t dtype);

/* Upper bound of |rounded(x) − x| for rounding to `digits` bits of significand (u = 2^-digits) and multiples of `tiny`;
 * 0 when x has that form already, because rounding it again is the identity. NaN and Inf: 0. */
double fd_rounding_error(double x, int digits, double tiny);

/* λ of the bounds: with n additions in each of N outputs, all stay within it with probability 1 − 10⁻³
 * (√(2 ln(2nN/δ)), Hoeffding and Azuma; about 7.7 for N = 10⁶, n = 4096). Both at least 1. */
double fd_bound_lambda(double n, double n_output);

#endif
