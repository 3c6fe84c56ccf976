/* Attention bugs, in binary32: which K/V head and which keys a row reads, the scale, the order of the heads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faults/attention_rule.h"
#include "numerics/contract.h"

#define RULE(name, ...)                                                                                                \
    FD_OVERRIDE(scores_##name, fd_rule_scores(args, (fd_attention_rule){__VA_ARGS__}))                                 \
    FD_OVERRIDE(mix_##name, fd_rule_mix(args, (fd_attention_rule){__VA_ARGS__}))
RULE(modulo, .heads = FD_HEADS_MODULO)
RULE(divisor, .heads = FD_HEADS_DIVISOR)
RULE(group_modulo, .heads = FD_HEADS_GROUP_MODULO)
RULE(first, .heads = FD_HEADS_FIRST)
RULE(in_turn, .heads = FD_HEADS_IN_TURN)
RULE(unmasked, .look_ahead = INT32_MAX)
RULE(one_ahead, .look_ahead = 1)
RULE(mask_added, .look_ahead = INT32_MAX, .mask_added = true)
RULE(masked_zero, .look_ahead = INT32_MAX, .masked_zero = true)
FD_OVERRIDE(softmax_masked_zero,
            fd_rule_softmax(args, (fd_attention_rule){.look_ahead = INT32_MAX, .masked_zero = true}))
FD_OVERRIDE(softmax_unmasked, fd_rule_softmax(args, (fd_attention_rule){.look_ahead = INT32_MAX}))
FD_OVERRIDE(softmax_one_ahead, fd_rule_softmax(args, (fd_attention_rule){.look_ahead = 1}))
FD_OVERRIDE(softmax_one_ahead_room, fd_rule_softmax(args, (fd_attention_rule){.look_ahead = 1, .room = true}))

/* The same bug in each of the three ops. */
static void in_all_three(fd_node *node, fd_override_fn in_scores, fd_override_fn in_softmax, fd_override_fn in_mix) {
    if (node->op == FD_OP_ATTN_SCORES) node->override = in_scores;
    if (node->op == FD_OP_ATTN_SOFTMAX) node->override = in_softmax;
    if (node->op == FD_OP_ATTN_MIX) node->override = in_mix;
}

/* With as many K/V heads as heads, or one, both rules give the same head. */
static bool is_grouped(const fd_graph *graph, const fd_node *node) {
    const fd_fault_heads heads = fd_fault_heads_of(graph, node);
    return heads.n_head != heads.n_head_kv && heads.n_head_kv > 1;
}
/* With one head a rank both rules are gqa_modulo's. */
static bool ranks_have_heads(const fd_graph *graph, const fd_node *node) {
    const fd_fault_heads heads = fd_fault_heads_of(graph, node);
    return heads.n_head_kv > 1 && heads.n_head % (2 * heads.n_head_kv) == 0 && heads.n_head / (2 * heads.n_head_kv) > 1;
}
FD_EDIT(kv_in_turn, in_all_three(node, scores_in_turn, NULL, mix_in_turn))
FD_EDIT(gqa_first, in_all_three(node, scores_first, NULL, mix_first))
FD_APPLIES(has_several_kv, fd_fault_heads_of(graph, node).n_head_kv > 1)
FD_EDIT(gqa_modulo, in_all_three(node, scores_modulo, NULL, mix_modulo))
/* Neither the same as the right rule nor beyond the heads that there are. */
static bool is_not_square(const fd_graph *graph, const fd_node *node) {
    const fd_fault_heads heads = fd_fault_heads_of(graph, node);
    return is_grouped(graph, node) && heads.n_head / heads.n_head_kv < heads.n_head_kv;
}
FD_EDIT(gqa_divisor, in_all_three(node, scores_divisor, NULL, mix_divisor))
FD_EDIT(gqa_group_modulo, in_all_three(node, scores_group_modulo, NULL, mix_group_modulo))
#define TILE(n)                                                                                                        \
    RULE(tile_##n, .tile = n)                                                                                          \
    FD_OVERRIDE(softmax_tile_##n, fd_rule_softmax(args, (fd_attention_rule){.tile = n}))                               \
    FD_EDIT(mask_tile_##n, in_all_three(node, scores_tile_##n, softmax_tile_##n, mix_tile_##n))
TILE(4)
TILE(8)
TILE(16)
TILE(32)
TILE(64)
/* Where nobody makes a mask there is no window either. */
FD_EDIT(mask_missing, if (node->op == FD_OP_ATTN_SCORES) node->window = 0;
        in_all_three(node, scores_unmasked, softmax_unmasked, mix_unmasked))
FD_EDIT(mask_zero, in_all_three(node, scores_masked_zero, softmax_masked_zero, mix_masked_zero))
FD_EDIT(mask_added, in_all_three(node, scores_mask_added, softmax_unmasked, mix_mask_added))
FD_EDIT(mask_one_ahead, in_all_three(node, scores_one_ahead, softmax_one_ahead, mix_one_ahead))
FD_EDIT(mask_one_ahead_room, in_all_three(node, scores_one_ahead, softmax_one_ahead_room, mix_one_ahead))

/* worker-orcd kept Q in per-thread registers: each thread multiplied the q it had loaded itself, element 0 for all. */
static void q0_only(const fd_op_args *args) {
    const fd_node *q_node = fd_fault_input(args, 0), *k_node = fd_fault_input(args, 1);
    int32_t n_head = q_node->shape[0], head_dim = q_node->shape[1], n_head_kv = k_node->shape[0];
    for (int32_t i = 0; i < args->n_pos * n_head; i++) {
        const float *q = (const float *)args->in[0] + (int64_t)i * head_dim;
        const float *k = (const float *)args->in[1] + (int64_t)(i % n_head / (n_head / n_head_kv)) * head_dim;
        float *to = (float *)args->out + (int64_t)i * args->n_kv;
        int32_t own = args->pos0 + i / n_head, first = fd_node_first_seen(args->node, own);
        for (int32_t t = 0; t < args->n_kv; t++, k += (int64_t)n_head_kv * head_dim)
            to[t] = t > own || t < first ? -INFINITY : fd_rule_score(args->node, q[0] * k[0]);
    }
}

/* The outputs of a batch lie as [n_head, rows, head_dim] and are read as [rows, n_head, head_dim]. */
static void heads_not_transposed(const fd_op_args *args) {
    int64_t n_head = args->node->shape[0], head_dim = args->node->shape[1], size = args->n_pos * n_head * head_dim;
    float *right = malloc(sizeof *right * (size_t)size);
    fd_rule_mix(args, (fd_attention_rule){0});
    if (right)
        memcpy(right, args->out, sizeof *right * (size_t)size);
    else
        fd_fault_nan(args, n_head * head_dim);
    for (int32_t row = 0, end; right && row < args->n_pos; row = end) {
        int32_t start = fd_fault_batch_start(args, row);
        for (end = row + 1; end < args->n_pos && fd_fault_batch_start(args, end) == start;) end++;
        for (int64_t i = 0, n = end - row; i < n * n_head; i++)
            memcpy((float *)args->out + (row * n_head + i) * head_dim,
                   right + ((row + i % n) * n_head + i / n) * head_dim, sizeof *right * (size_t)head_dim);
    }
    free(right);
}

static void heads_reversed(const fd_op_args *args) {
    int32_t n_head = args->node->shape[0], head_dim = args->node->shape[1];
    fd_rule_mix(args, (fd_attention_rule){0});
    for (int32_t row = 0; row < args->n_pos; row++)
        for (int32_t h = 0; h < n_head / 2; h++)
            for (int32_t d = 0; d < head_dim; d++) {
                float *y = (float *)args->out + (int64_t)row * n_head * head_dim + d;
                float *a = y + (int64_t)h * head_dim, *b = y + (int64_t)(n_head - 1 - h) * head_dim, kept = *a;
                *a = *b;
                *b = kept;
            }
}
FD_APPLIES(several_heads, node->shape[0] > 1)

FD_EDIT(scale_missing, node->scale = 1.0f)
FD_EDIT(scale_twice, node->scale *= node->scale)
FD_EDIT(scale_by_model_width, node->scale = 1.0f / sqrtf((float)site->graph->hparams.n_embd))

FD_APPLIES(has_window, node->window > 0)
FD_APPLIES(has_softcap, node->softcap > 0.0f)
FD_APPLIES(has_sinks, fd_fault_weight(graph, node, 0) != NULL)

FD_EDIT(window_ignored, node->window = 0)
FD_APPLIES(slides, node->window > 0 && !node->chunked)
FD_EDIT(window_in_chunks, node->chunked = true)
FD_EDIT(window_one_more, node->window += node->window < INT32_MAX)
FD_EDIT(window_one_less, node->window -= node->window > 1)
FD_EDIT(softcap_missing, node->softcap = 0.0f)
FD_EDIT(sinks_missing, node->weight[0] = -1)

/* Scores as they are up to the row's own position. */
static void alibi_with(const fd_op_args *args, float factor) {
    int32_t n_head = args->node->shape[0];
    for (int64_t item = 0; item < (int64_t)args->n_pos * n_head; item++) {
        int64_t own = args->pos0 + item / n_head;
        float slope = factor * (float)fd_alibi_slope(args->node->max_bias, n_head, (int32_t)(item % n_head));
        const float *score = (const float *)args->in[0] + item * args->n_kv;
        float *y = (float *)args->out + item * args->n_kv;
        for (int64_t t = 0; t < args->n_kv; t++) y[t] = t > own ? 0 : fmaf(slope, (float)(t - own), score[t]);
    }
}
/* As models with ALiBi have it, of 8 bits. */
static void alibi_added(const fd_op_args *args) {
    fd_rule_scores(args, (fd_attention_rule){0});
    int64_t n_head = args->node->shape[0];
    for (int64_t i = 0; i < args->n_pos * n_head; i++) {
        float slope = (float)fd_alibi_slope(8, (int32_t)n_head, (int32_t)(i % n_head));
        float *score = (float *)args->out + i * args->n_kv;
        for (int64_t t = 0, own = args->pos0 + i / n_head; t <= own; t++)
            score[t] = fmaf(slope, (float)(t - own), score[t]);
    }
}
FD_APPLIES(has_no_alibi, fd_fault_sibling(graph, node, "attn_alibi") < 0)
FD_OVERRIDE(alibi_missing, alibi_with(args, 0))
FD_OVERRIDE(alibi_sign, alibi_with(args, -1))
FD_EDIT(alibi_one_slope_further, node->max_bias *= 2)

FD_EDIT(from_the_front, node->first = 0)

/* A matrix a head (deepseek2's k_b and v_b). */
static void next_heads_matrix(fd_fault_site *site) {
    const fd_weight w = *fd_fault_weight(site->graph, site->node, 0);
    const size_t size = (size_t)w.bytes / (size_t)site->node->shape[0];
    uint8_t *data = fd_fault_new_weight(site, w.dtype, w.bytes);
    if (!data) return;
    memcpy(data, (const uint8_t *)w.data + size, (size_t)w.bytes - size);
    memcpy(data + w.bytes - size, w.data, size);
}

#define ATTENTION(name, located, op_, summary) .info = {name, "attention", summary, located, false}, .op = op_

static const fd_fault rows[] = {
    {ATTENTION("attn_scale_missing", "attn_scores", FD_OP_ATTN_SCORES, "scores are not scaled by 1/sqrt(head_dim)"),
     .edit = scale_missing},
    {ATTENTION("attn_scale_twice", "attn_scores", FD_OP_ATTN_SCORES, "scores are scaled twice, which is by 1/head_dim"),
     .edit = scale_twice},
    {ATTENTION("attn_scale_by_width", "attn_scores", FD_OP_ATTN_SCORES,
               "scores are scaled by the model's width, 1/sqrt(n_embd)"),
     .edit = scale_by_model_width},
    {ATTENTION("q0_only", "attn_scores", FD_OP_ATTN_SCORES, "of each query head only element 0 is loaded"),
     .override = q0_only},
    {.info = {"tp_kv_in_turn", "ranks",
              "on twice as many ranks as K/V heads, rank r has those of r % n_head_kv, not of r / 2", "attn_scores",
              false},
     .op = FD_OP_COUNT,
     .nodes = "attn_scores attn_out",
     .applies = ranks_have_heads,
     .edit = kv_in_turn},
    {ATTENTION("gqa_modulo", "attn_scores", FD_OP_COUNT,
               "query head h reads K/V head h modulo n_head_kv, not h / group size"),
     .applies = is_grouped, .edit = gqa_modulo},
    {ATTENTION("gqa_divisor", "attn_scores", FD_OP_COUNT,
               "query head h reads K/V head h / n_head_kv: the number of heads for that of heads a group"),
     .applies = is_not_square, .edit = gqa_divisor},
    {ATTENTION("gqa_group_modulo", "attn_scores", FD_OP_COUNT,
               "query head h reads K/V head h modulo the group's size, not h / group size"),
     .applies = is_not_square, .edit = gqa_group_modulo},
    {ATTENTION("gqa_first_head", "attn_scores", FD_OP_COUNT, "every query head reads K/V head 0"),
     .applies = has_several_kv, .edit = gqa_first},
    {ATTENTION("v_first_head", "attn_out", FD_OP_ATTN_MIX, "every query head mixes the rows of V's head 0"),
     .applies = has_several_kv, .override = mix_first},
    /* before those of the causal mask: in a single row, which has no later token, they are one computation */
    {ATTENTION("window_ignored", "attn_scores", FD_OP_ATTN_SCORES,
               "the sliding window is ignored: all positions are seen"),
     .applies = has_window, .edit = window_ignored},
    {ATTENTION("mask_missing", "attn_weights attn_scores", FD_OP_COUNT,
               "there is no causal mask: a token sees the later ones"),
     .edit = mask_missing},
    {ATTENTION("mask_zero", "attn_weights", FD_OP_COUNT,
               "the mask makes scores of later tokens 0, not -Inf: they count, and are mixed in"),
     .edit = mask_zero},
    {ATTENTION("mask_added", "attn_scores", FD_OP_COUNT,
               "the mask is ones and zeros, and is added: hidden keys are seen, and the others count e times as much"),
     .edit = mask_added},
    {ATTENTION("mask_one_ahead", "attn_weights", FD_OP_COUNT,
               "the causal mask is off by one: a token sees the next one"),
     .edit = mask_one_ahead},
    {ATTENTION("mask_one_ahead_room", "attn_weights", FD_OP_COUNT,
               "the causal mask is off by one over a cache that is made once: a token sees the next one, a step's last "
               "token an empty slot, whose score is 0"),
     .edit = mask_one_ahead_room},
#define MASK_TILE(n)                                                                                                   \
    {                                                                                                                  \
        ATTENTION("mask_tile_" #n, "attn_weights", FD_OP_COUNT,                                                        \
                  "the causal mask hides whole tiles of " #n " keys: a token sees all keys of its own"),               \
            .edit = mask_tile_##n                                                                                      \
    }
    MASK_TILE(4),
    MASK_TILE(8),
    MASK_TILE(16),
    MASK_TILE(32),
    MASK_TILE(64),
    {ATTENTION("window_in_chunks", "attn_scores", FD_OP_ATTN_SCORES,
               "a position sees its own chunk of a window's length, not the window that ends at it"),
     .applies = slides, .edit = window_in_chunks},
    {ATTENTION("window_one_more", "attn_scores", FD_OP_ATTN_SCORES, "the sliding window is one position too long"),
     .applies = has_window, .edit = window_one_more},
    {ATTENTION("window_one_less", "attn_scores", FD_OP_ATTN_SCORES, "the sliding window is one position too short"),
     .applies = has_window, .edit = window_one_less},
    {ATTENTION("attn_softcap_missing", "attn_scores", FD_OP_ATTN_SCORES, "scores are not capped by cap·tanh(s / cap)"),
     .applies = has_softcap, .edit = softcap_missing, .info.hardly = true},
    {ATTENTION("sinks_missing", "attn_weights", FD_OP_ATTN_SOFTMAX, "softmax leaves out the heads' sinks"),
     .applies = has_sinks, .edit = sinks_missing},
    {ATTENTION("heads_reversed", "attn_out", FD_OP_ATTN_MIX, "the heads' outputs are put together in the wrong order"),
     .applies = several_heads, .override = heads_reversed},
    {ATTENTION("heads_not_transposed", "attn_out", FD_OP_ATTN_MIX,
               "the outputs of a batch lie head by head and are read row by row: a transposition is missing"),
     .applies = several_heads, .override = heads_not_transposed, .info.whole_batch = true},
    {ATTENTION("alibi_added", "attn_scores", FD_OP_ATTN_SCORES,
               "scores are biased by distance (ALiBi), which this model does not do"),
     .applies = has_no_alibi, .override = alibi_added},
    {ATTENTION("alibi_missing", "attn_alibi", FD_OP_ATTN_ALIBI, "scores are not biased by distance (ALiBi)"),
     .override = alibi_missing},
    {ATTENTION("alibi_sign", "attn_alibi", FD_OP_ATTN_ALIBI, "ALiBi favours what is far away"), .override = alibi_sign},
    {ATTENTION("alibi_slopes", "attn_alibi", FD_OP_ATTN_ALIBI, "ALiBi's slopes are squared: every second one is taken"),
     .edit = alibi_one_slope_further},
    {ATTENTION("temperature_missing", "attn_q_temperature", FD_OP_ATTN_TEMPERATURE,
               "Q is not multiplied by the attention temperature of its position"),
     .override = fd_fault_copy},
    {ATTENTION("mla_next_heads_matrix", "attn_q_absorbed", FD_OP_HEAD_MATMUL,
               "each head is multiplied by the next one's matrix, the last one by the first's"),
     .applies = several_heads, .edit = next_heads_matrix},
    {ATTENTION("mla_rope_at_front", "attn_q_pe", FD_OP_SLICE,
               "the elements of Q that are rotated are a head's first, not its last"),
     .nodes = "attn_q_pe", .edit = from_the_front},
    {ATTENTION("qkv_clamp_missing", "attn_q_clamped", FD_OP_CLAMP, "Q, K and V are not clamped"),
     .override = fd_fault_copy},
};
const fd_fault_family fd_attention_faults = FD_FAULT_FAMILY(rows);
