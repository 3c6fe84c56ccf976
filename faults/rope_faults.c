/* RoPE bugs. Attributes where the op itself is right; where the position or the sign is wrong, a rotation of its own
 * that makes its angles itself. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "numerics/contract.h"

/* 10000 is what engines default to, 1e6 what qwen2 and later llamas need. */
FD_EDIT(base, node->rope.base = node->rope.base == 10000.0 ? 1e6 : 10000.0)

/* base^(-i/d) is sqrt(base)^(-2i/d). */
FD_EDIT(exponent, node->rope.base = sqrt(node->rope.base))

FD_APPLIES(is_partial, node->rope.n_rot < node->shape[1] && node->shape[1] % 2 == 0 && node->weight[0] < 0)
FD_EDIT(partial_ignored, node->rope.n_rot = node->shape[1])

FD_APPLIES(is_scaled, node->rope.scaling != FD_ROPE_SCALING_NONE || node->weight[0] >= 0)
FD_EDIT(scaling_ignored, node->rope.scaling = FD_ROPE_SCALING_NONE; node->rope.attention_factor = 0;
        node->weight[0] = node->weight[1] = -1)

FD_APPLIES(is_yarn, node->rope.scaling == FD_ROPE_SCALING_YARN)
FD_APPLIES(is_by_frequency, node->rope.scaling == FD_ROPE_SCALING_YARN || node->rope.scaling == FD_ROPE_SCALING_LLAMA3)
FD_EDIT(factor_missing, node->rope.factor = 1)
FD_EDIT(ramp_reversed, node->rope.ext_factor = -node->rope.ext_factor)
FD_EDIT(ramp_missing, node->rope.scaling = FD_ROPE_SCALING_LINEAR)

FD_APPLIES(has_attention_factor, node->rope.attention_factor != 0 && node->rope.attention_factor != 1)
FD_EDIT(attention_factor_missing, node->rope.attention_factor = 0)

FD_APPLIES(has_original_context,
           (node->rope.scaling == FD_ROPE_SCALING_YARN || node->rope.scaling == FD_ROPE_SCALING_LLAMA3) &&
               node->rope.original_context != graph->hparams.n_ctx_train)
FD_EDIT(original_context_ignored, node->rope.original_context = site->graph->hparams.n_ctx_train)

FD_APPLIES(has_long_factors, node->weight[1] >= 0)
FD_EDIT(other_factors, int32_t other = node->weight[1]; node->weight[1] = node->weight[0]; node->weight[0] = other)

static float as_is(float x) {
    return x;
}
/* Turns pair i of a head by the angle of that cosine and sine. */
static void turn(const fd_node *node, float *head, int32_t i, float c, float s) {
    bool neighbours = node->rope.pairing == FD_ROPE_INTERLEAVED;
    float *first = head + (neighbours ? 2 * i : i), *second = first + (neighbours ? 1 : node->rope.n_rot / 2);
    float a = *first, b = *second;
    *first = fmaf(a, c, -(b * s));
    *second = fmaf(a, s, b * c);
}

/* Turns x in place into what the angle of position `pos` makes of it, `sign` times; binary32, as the contract
 * rounds. */
static bool rotate(const fd_op_args *args, float *x, int32_t pos, float sign, bool exchanged, fd_fault_round round) {
    const fd_node *node = args->node;
    int32_t half = node->rope.n_rot / 2, n_head = node->shape[0], head_dim = node->shape[1];
    float *cosine = malloc(sizeof *cosine * (size_t)half * 2), *sine = cosine + half;
    if (cosine) fd_rope_table(&node->rope, args->weight[0], pos, 1, cosine, sine);
    for (int32_t h = 0; h < n_head && cosine; h++)
        for (int32_t i = 0; i < half; i++)
            turn(node, x + (int64_t)h * head_dim, i, round(exchanged ? sine[i] : cosine[i]),
                 sign * round(exchanged ? cosine[i] : sine[i]));
    bool done = cosine != NULL;
    free(cosine);
    return done;
}

static void rotate_by(const fd_op_args *args, int32_t shift, float sign, int times, bool exchanged,
                      fd_fault_round round) {
    int64_t width = fd_node_width(args->node);
    memcpy(args->out, args->in[0], sizeof(float) * (size_t)(args->n_pos * width));
    for (int32_t r = 0; r < args->n_pos; r++)
        for (int i = 0; i < times; i++)
            if (!rotate(args, (float *)args->out + r * width, args->pos0 + r + shift, sign, exchanged, round)) {
                fd_fault_nan(args, width);
                return;
            }
}

static void rotate_rows(const fd_op_args *args, int32_t shift, float sign, int times, fd_fault_round round) {
    rotate_by(args, shift, sign, times, false, round);
}

/* Of a head that is rotated in part. */
static void last_dims(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), first = args->node->shape[1] - args->node->rope.n_rot;
    memcpy(args->out, args->in[0], sizeof(float) * (size_t)(args->n_pos * width));
    for (int32_t r = 0; r < args->n_pos; r++)
        if (!rotate(args, (float *)args->out + r * width + first, args->pos0 + r, 1.0f, false, as_is))
            fd_fault_nan(args, width);
}

FD_OVERRIDE(sine_for_cosine, rotate_by(args, 0, 1.0f, 1, true, as_is))
FD_OVERRIDE(one_further, rotate_rows(args, 1, 1.0f, 1, as_is))
FD_OVERRIDE(other_way, rotate_rows(args, 0, -1.0f, 1, as_is))
FD_OVERRIDE(table_in_f16, rotate_rows(args, 0, 1.0f, 1, fd_fault_to_f16))
FD_OVERRIDE(table_in_bf16, rotate_rows(args, 0, 1.0f, 1, fd_fault_to_bf16))
FD_OVERRIDE(twice, rotate_rows(args, 0, 1.0f, 2, as_is))
/* cos 0 = 1 and sin 0 = 0: position 0 leaves a row as it is. */
FD_OVERRIDE(not_at_all, rotate_rows(args, 0, 1.0f, 0, as_is))

/* The second of a pair is computed from the first's new value: a·s + b·c with what was written over a. */
static void in_place(const fd_op_args *args) {
    const fd_node *node = args->node;
    const int64_t width = fd_node_width(node), head_dim = node->shape[1];
    const int32_t half = node->rope.n_rot / 2;
    const bool neighbours = node->rope.pairing == FD_ROPE_INTERLEAVED;
    float *cosine = malloc(sizeof *cosine * (size_t)half * 2), *sine = cosine + half;
    if (!cosine) {
        fd_fault_nan(args, width);
        return;
    }
    rotate_rows(args, 0, 1.0f, 1, as_is);
    for (int64_t at = 0; at < args->n_pos * width; at += head_dim) {
        const float *from = (const float *)args->in[0] + at;
        float *to = (float *)args->out + at;
        if (at % width == 0)
            fd_rope_table(&node->rope, args->weight[0], args->pos0 + (int32_t)(at / width), 1, cosine, sine);
        for (int32_t i = 0; i < half; i++) {
            const int32_t first = neighbours ? 2 * i : i, second = neighbours ? first + 1 : first + half;
            to[second] = fmaf(to[first], sine[i], from[second] * cosine[i]);
        }
    }
    free(cosine);
}

/* What follows the dimensions that turn is not copied. */
FD_APPLIES(has_rest, node->rope.n_rot < node->shape[1])
static void rest_missing(const fd_op_args *args) {
    int64_t width = fd_node_width(args->node), head_dim = args->node->shape[1];
    rotate_rows(args, 0, 1.0f, 1, as_is);
    for (int64_t i = 0; i < args->n_pos * width; i++)
        if (i % head_dim >= args->node->rope.n_rot) ((float *)args->out)[i] = 0.0f;
}

/* Frequencies rounded, which are the angles of position 1; with `angles`, their products with positions too. */
static void rounded_frequencies(const fd_op_args *args, fd_fault_round round, bool angles) {
    const fd_node *node = args->node;
    int64_t width = fd_node_width(node), head_dim = node->shape[1];
    int32_t half = node->rope.n_rot / 2;
    double *cosine = malloc(sizeof *cosine * (size_t)half * 2), *sine = cosine + half;
    if (!cosine) {
        fd_fault_nan(args, width);
        return;
    }
    fd_rope_table_f64(&node->rope, args->weight[0], 1, 1, cosine, sine);
    memcpy(args->out, args->in[0], sizeof(float) * (size_t)(args->n_pos * width));
    for (int64_t at = 0; at < args->n_pos * width; at += head_dim)
        for (int32_t i = 0; i < half; i++) {
            float frequency = round((float)atan2(sine[i], cosine[i]));
            float angle = (float)(args->pos0 + at / width) * frequency;
            double size = hypot(sine[i], cosine[i]); /* of the attention factor */
            if (angles) angle = round(angle);
            turn(node, (float *)args->out + at, i, (float)(size * cos((double)angle)),
                 (float)(size * sin((double)angle)));
        }
    free(cosine);
}
FD_APPLIES(several_frequencies, node->rope.n_rot > 2)
FD_OVERRIDE(frequency_f16, rounded_frequencies(args, fd_fault_to_f16, false))
FD_OVERRIDE(frequency_bf16, rounded_frequencies(args, fd_fault_to_bf16, false))
FD_OVERRIDE(angle_f16, rounded_frequencies(args, fd_fault_to_f16, true))
FD_OVERRIDE(angle_bf16, rounded_frequencies(args, fd_fault_to_bf16, true))

/* The norm of the heads that are turned; NULL: there is none. */
static const fd_node *norm_before(const fd_graph *graph, const fd_node *rope) {
    const fd_node *in = &graph->nodes[rope->input[0]];
    return in->op == FD_OP_RMS_NORM && in->n_dim == 2 && in->weight[0] >= 0 ? in : NULL;
}
static bool norms_heads(const fd_graph *graph, const fd_node *node) {
    if (node->op == FD_OP_ROPE) return norm_before(graph, node) != NULL;
    for (int32_t i = node->id + 1; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ROPE && graph->nodes[i].input[0] == node->id)
            return norm_before(graph, &graph->nodes[i]) != NULL;
    return false;
}
static void turned_then_normed(const fd_op_args *args) {
    const fd_node *norm = norm_before(args->graph, args->node);
    const int64_t dim = args->node->shape[1], n = args->n_pos * fd_node_width(args->node);
    float *w = norm ? fd_fault_row(fd_fault_weight(args->graph, norm, 0), 0) : NULL;
    if (!w) {
        fd_fault_nan(args, fd_node_width(args->node));
        return;
    }
    rotate_rows(args, 0, 1.0f, 1, as_is);
    for (int64_t at = 0; at < n; at += dim) {
        float *x = (float *)args->out + at;
        const float by = 1.0f / sqrtf(fd_dot(x, x, dim) / (float)dim + norm->eps);
        for (int64_t i = 0; i < dim; i++) x[i] = x[i] * by * w[i];
    }
    free(w);
}
FD_EDIT(norm_behind, node->override = node->op == FD_OP_ROPE ? turned_then_normed : fd_fault_copy)

/* K's rotation of that layer; NULL: there is none. */
static const fd_node *rope_of_k(const fd_graph *graph, const fd_node *cache) {
    const int32_t id = fd_fault_sibling(graph, cache, "attn_k_rope");
    return id < 0 || graph->nodes[id].op != FD_OP_ROPE ? NULL : &graph->nodes[id];
}
static bool turns_as_k(const fd_graph *graph, const fd_node *node) {
    const fd_node *k = rope_of_k(graph, node);
    return k && node->n_dim == 2 && node->shape[0] == k->shape[0] && node->shape[1] == k->shape[1];
}
static void v_turned(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    fd_op_args as_k = *args;
    as_k.node = rope_of_k(args->graph, args->node);
    as_k.weight[0] = as_k.node ? fd_fault_weight(args->graph, as_k.node, 0) : NULL;
    as_k.out = (float *)args->out + args->pos0 * width;
    if (!as_k.node) return;
    rotate_rows(&as_k, 0, 1.0f, 1, as_is);
}

#define ROPE(name, located, summary) .info = {name, "rope", summary, located, false}, .op = FD_OP_ROPE

static const fd_fault rows[] = {
    {ROPE("rope_base", "attn_q_rope", "RoPE has the other usual base: 10000 for 1e6, or 1e6 for 10000"), .edit = base},
    {ROPE("rope_exponent", "attn_q_rope", "RoPE's exponent is i/d for 2i/d"), .edit = exponent},
    {ROPE("rope_q_one_further", "attn_q_rope", "RoPE turns Q, and Q alone, by the angle of position + 1"),
     .nodes = "attn_q_rope", .override = one_further},
    {ROPE("rope_k_one_further", "attn_k_rope", "RoPE turns K, and K alone, by the angle of position + 1"),
     .nodes = "attn_k_rope", .override = one_further},
    {.info = {"rope_both_one_further", "rope",
              "RoPE turns Q and K by the angle of position + 1: no harm where it is so for every row in the cache",
              "attn_q_rope", .all_alike = true},
     .op = FD_OP_ROPE,
     .override = one_further},
    {ROPE("rope_position_zero", "attn_q_rope", "RoPE takes position 0 for every row: nothing is rotated"),
     .override = not_at_all},
    {ROPE("rope_not_on_k", "attn_k_rope", "RoPE is applied to Q, not to K"), .nodes = "attn_k_rope",
     .override = not_at_all},
    {ROPE("rope_sine_for_cosine", "attn_q_rope", "RoPE takes the sine for the cosine and the cosine for the sine"),
     .override = sine_for_cosine},
    {ROPE("rope_sign", "attn_q_rope", "RoPE rotates the other way round"), .override = other_way},
    {.info = {"rope_table_f16", "rope", "the cosines and sines of RoPE are rounded to binary16", "attn_q_rope", false,
              0x1p-11},
     .op = FD_OP_ROPE,
     .override = table_in_f16},
    {.info = {"rope_table_bf16", "rope", "the cosines and sines of RoPE are rounded to bfloat16", "attn_q_rope", false,
              0x1p-8},
     .op = FD_OP_ROPE,
     .override = table_in_bf16},
    {ROPE("rope_freq_f16", "attn_q_rope", "RoPE's frequencies are rounded to binary16"), .applies = several_frequencies,
     .override = frequency_f16},
    {ROPE("rope_freq_bf16", "attn_q_rope", "RoPE's frequencies are rounded to bfloat16"),
     .applies = several_frequencies, .override = frequency_bf16},
    {ROPE("rope_angle_f16", "attn_q_rope", "RoPE's frequencies and angles are rounded to binary16"),
     .applies = several_frequencies, .override = angle_f16},
    {ROPE("rope_angle_bf16", "attn_q_rope", "RoPE's frequencies and angles are rounded to bfloat16"),
     .applies = several_frequencies, .override = angle_bf16},
    {ROPE("rope_rest_missing", "attn_q_rope", "the dimensions that are not rotated are not copied: zeros"),
     .applies = has_rest, .override = rest_missing},
    {ROPE("rope_in_place", "attn_q_rope",
          "RoPE writes the first of a pair before it computes the second, which then reads the new value"),
     .override = in_place},
    {ROPE("rope_twice", "attn_q_rope", "RoPE is applied twice"), .override = twice},
    {.info = {"rope_before_norm", "rope", "RoPE turns Q and K before their heads are normed, not after", "attn_q_norm",
              false, .pair = true, .roundings = 8},
     .op = FD_OP_COUNT,
     .nodes = "attn_q_norm attn_k_norm attn_q_rope attn_k_rope",
     .applies = norms_heads,
     .edit = norm_behind},
    {.info = {"rope_on_v", "rope", "RoPE is applied to V, too", "cache_v", false, .lasting = true, .roundings = 8},
     .op = FD_OP_KV_WRITE,
     .nodes = "cache_v",
     .applies = turns_as_k,
     .override = v_turned},
    {ROPE("rope_scaling_ignored", "attn_q_rope",
          "the context scaling of RoPE (linear, llama3, YaRN, LongRoPE, frequency factors) is ignored"),
     .applies = is_scaled, .edit = scaling_ignored},
    {ROPE("rope_factor_missing", "attn_q_rope",
          "YaRN does not divide frequencies by its factor, only cos and sin grow"),
     .applies = is_yarn, .edit = factor_missing},
    {ROPE("rope_ramp_reversed", "attn_q_rope", "YaRN keeps slow pairs and slows fast ones: its ramp is reversed"),
     .applies = is_yarn, .edit = ramp_reversed},
    {ROPE("rope_ramp_missing", "attn_q_rope",
          "YaRN or llama3's scaling slows every pair by its factor, as linear scaling does"),
     .applies = is_by_frequency, .edit = ramp_missing},
    {ROPE("rope_attention_factor_missing", "attn_q_rope",
          "cos and sin are not multiplied by the attention factor of YaRN or LongRoPE"),
     .applies = has_attention_factor, .edit = attention_factor_missing},
    {ROPE("rope_original_context_ignored", "attn_q_rope",
          "the scaling of RoPE (llama3, YaRN) takes the context length for the original one"),
     .applies = has_original_context, .edit = original_context_ignored},
    {ROPE("rope_long_for_short", "attn_q_rope",
          "LongRoPE's factors are those of the other context length: long for short, or short for long"),
     .applies = has_long_factors, .edit = other_factors},
    {ROPE("rope_partial_ignored", "attn_q_rope", "the whole head is rotated where the model rotates a part of it"),
     .applies = is_partial, .edit = partial_ignored},
    {ROPE("rope_last_dims", "attn_q_rope", "the last elements of a head are rotated where the model rotates the first"),
     .applies = is_partial, .override = last_dims},
};
const fd_fault_family fd_rope_faults = FD_FAULT_FAMILY(rows);
