#include "compare/hypothesis/hypothesis.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compare/bounds/dot_inputs.h"
#include "compare/hypothesis/internal.h"
#include "compare/hypothesis/parameters.h"
#include "compare/hypothesis/round_scaled.h"

const fd_hypothesis fd_no_hypothesis = {.guess = FD_GUESS_NONE, .node = -1, .layer = FD_ANY_LAYER};

/* The op that a guess is about; FD_OP_COUNT: any. */
static fd_op op_of(const fd_hypothesis *h) {
    switch (h->guess) {
    case FD_GUESS_PARAMETER: return fd_parameters[h->which].op;
    case FD_GUESS_POSITION: return h->ops > 0 ? (fd_op)(h->ops - 1) : FD_OP_ROPE;
    case FD_GUESS_TOKEN: return FD_OP_EMBED;
    case FD_GUESS_STATISTIC: return FD_OP_RMS_NORM;
    case FD_GUESS_SCALING: return FD_OP_ROPE;
    case FD_GUESS_NONE:
    case FD_GUESS_FAULT:
    case FD_GUESS_WEIGHT:
    case FD_GUESS_INPUT:
    case FD_GUESS_INPUT_ORDER:
    case FD_GUESS_INPUT_FACTOR:
    case FD_GUESS_INPUT_TAIL:
    case FD_GUESS_PARTIAL:
    case FD_GUESS_BLOCKS:
    case FD_GUESS_STRIDES:
    case FD_GUESS_TILES:
    case FD_GUESS_CACHE:
    case FD_GUESS_MAPPED:
    case FD_GUESS_EXPERTS:
    case FD_GUESS_HEAD_NUMBERS:
    case FD_GUESS_UNWRITTEN:
    case FD_GUESS_STATE:
    case FD_GUESS_TWICE:
    case FD_GUESS_COPY:
    case FD_GUESS_CLAMP:
    case FD_GUESS_OWN:
    case FD_GUESS_KEYS:
    case FD_GUESS_SLOTS:
    case FD_GUESS_CAP:
    case FD_GUESS_FACTOR:
    case FD_GUESS_ORDER:
    case FD_GUESS_ROWS:
    case FD_GUESS_ROUNDED: break;
    }
    return h->node < 0 && h->ops > 0 ? (fd_op)(h->ops - 1) : FD_OP_COUNT;
}

static bool is_recurrent(fd_op op) {
    return op == FD_OP_CONV || op == FD_OP_SSM_SCAN || op == FD_OP_GATED_DELTA || op == FD_OP_WKV7 ||
           op == FD_OP_TOKEN_SHIFT;
}

bool fd_reads_kv_cache(const fd_node *node) {
    return node->op == FD_OP_ATTN_SCORES || node->op == FD_OP_ATTN_MIX;
}

bool fd_has_head_numbers(const fd_node *node) {
    return node->op == FD_OP_ATTN_ALIBI || (node->op == FD_OP_ATTN_SOFTMAX && node->weight[0] >= 0);
}

/* Without a mask scores, weights and sums are others. */
static bool is_without_mask(const fd_hypothesis *h) {
    return h->guess == FD_GUESS_SLOTS && h->which;
}

bool fd_hypothesis_may_be_mapped(const fd_hypothesis *h, const fd_node *node) {
    if (h->which == FD_MAPPED_NUMBERS) return fd_has_head_numbers(node);
    if (h->which == FD_MAPPED_OUTPUTS) return node->op == FD_OP_EXPERT_SUM;
    return h->which == FD_MAPPED_EXPERTS ? node->op == FD_OP_EXPERT_MATMUL : fd_reads_kv_cache(node);
}

static bool is_of_experts(const fd_hypothesis *h, const fd_node *node) {
    return node->op == FD_OP_EXPERT_MATMUL || (h->which == FD_EXPERTS_INPUTS_WEIGHTED && node->op == FD_OP_EXPERT_SUM);
}

uint64_t fd_hypothesis_right_map(const fd_hypothesis *h) {
    uint64_t map = 0;
    for (int32_t i = 0; i < h->n; i++)
        map |= (uint64_t)(h->which == FD_MAPPED_QUERIES ? i * h->other / h->n : i) << 4 * i;
    return map;
}

/* Of one kind, or of one of two. */
static bool is_of_kind(const char *kinds, const char *kind) {
    const size_t n = strcspn(kinds, " "), size = strlen(kind);
    if (size == n && strncmp(kinds, kind, n) == 0) return true;
    return kinds[n] == ' ' && strcmp(kinds + n + 1, kind) == 0;
}

static bool is_exchanged(const fd_hypothesis *h, const fd_node *node) {
    return h->guess == FD_GUESS_WEIGHT && !h->kind[0] && h->n && node->layer == h->other;
}

bool fd_hypothesis_may_concern(const fd_hypothesis *h, const fd_node *node) {
    if (h->guess == FD_GUESS_NONE || (h->node >= 0 && h->node != node->id)) return false;
    if (is_without_mask(h) && fd_reads_kv_cache(node)) return h->layer == FD_ANY_LAYER || h->layer == node->layer;
    if (h->node < 0 && h->layer != FD_ANY_LAYER && h->layer != node->layer && !is_exchanged(h, node)) return false;
    if (h->node < 0 && h->kind[0] && !is_of_kind(h->kind, fd_fault_suffix(node))) return false;
    if (h->node < 0 && h->n_dim && h->n_dim != node->n_dim) return false;
    if (h->guess == FD_GUESS_CACHE || (h->guess == FD_GUESS_UNWRITTEN && h->ops == 0)) return fd_reads_kv_cache(node);
    if (h->guess == FD_GUESS_MAPPED && !fd_hypothesis_may_be_mapped(h, node)) return false;
    if (h->guess == FD_GUESS_STRIDES && h->which < 0) return fd_reads_kv_cache(node);
    if (h->guess == FD_GUESS_HEAD_NUMBERS) return fd_has_head_numbers(node);
    if (h->guess == FD_GUESS_EXPERTS && !is_of_experts(h, node)) return false;
    if (h->guess == FD_GUESS_TILES && node->op != FD_OP_ATTN_MIX && node->op != FD_OP_ATTN_SOFTMAX) return false;
    if (h->node < 0 && h->readers > 0 && node->input[h->which] != h->readers - 1) return false;
    if (h->guess == FD_GUESS_STATE) /* rows of zeros are not neutral to RWKV's state */
        return is_recurrent(node->op) && (h->which == FD_STATE_FRESH || node->op != FD_OP_WKV7);
    return op_of(h) == FD_OP_COUNT || op_of(h) == node->op;
}

int32_t fd_bias_of_weight(const fd_graph *graph, int32_t weight, const fd_node *node) {
    const char *name = graph->weights[weight].name, *end = strstr(name, ".weight"); /* rows of one matrix follow it */
    const fd_weight *own = node->weight[1] < 0 ? NULL : &graph->weights[node->weight[1]];
    char bias[128];
    if (!own || !end) return -1;
    snprintf(bias, sizeof bias, "%.*s.bias%s", (int)(end - name), name, end + strlen(".weight"));
    for (int32_t w = 0; w < graph->n_weight; w++)
        if (strcmp(graph->weights[w].name, bias) == 0)
            return graph->weights[w].n_row == own->n_row && graph->weights[w].n_col == own->n_col ? w : -1;
    return -1;
}

static void fill_weights(const fd_graph *graph, fd_faulty_node *out) {
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (out->node.weight[k] >= 0) out->weight[k] = graph->weights[out->node.weight[k]];
}

/* The weights that another layer has of the same names; false: it has none. */
static bool take_layer(const fd_graph *graph, int32_t layer, int n_slot, fd_faulty_node *out) {
    bool any = false;
    for (int k = 0; k < n_slot; k++) {
        const fd_weight *own = out->node.weight[k] < 0 ? NULL : &graph->weights[out->node.weight[k]];
        const char *suffix = own && strncmp(own->name, "blk.", 4) == 0 ? strchr(own->name + 4, '.') : NULL;
        char name[96];
        snprintf(name, sizeof name, "blk.%d%s", layer, suffix ? suffix : "");
        for (int32_t w = 0; w < graph->n_weight && suffix; w++) {
            const fd_weight *other = &graph->weights[w];
            if (strcmp(other->name, name) != 0 || other->n_row != own->n_row || other->n_col != own->n_col) continue;
            out->node.weight[k] = w;
            out->weight[k] = *other;
            any = true;
        }
    }
    return any;
}

/* With the numbers that models have beside the factor and the context. */
static void scale_rope(const fd_hypothesis *h, fd_rope *rope) {
    rope->scaling = (fd_rope_scaling)h->which;
    rope->factor = h->value;
    rope->original_context = h->n;
    rope->low_freq_factor = 1;
    rope->high_freq_factor = 4;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->ext_factor = 1;
    rope->attention_factor = h->other ? 0.1 * log(h->value) + 1 : 0;
}

fd_code fd_hypothesis_edit(const fd_hypothesis *h, const fd_graph *graph, const fd_node *node, fd_faulty_node *out,
                           bool *edited, fd_error *err) {
    *edited = fd_hypothesis_may_concern(h, node);
    if (*edited && (h->guess == FD_GUESS_FAULT || is_without_mask(h))) {
        const int32_t fault = is_without_mask(h) ? fd_fault_find("mask_missing") : h->fault;
        FD_TRY(fd_fault_edit_node(fault, graph, node, out, err));
        *edited = out->owner != NULL;
        return FD_OK;
    }
    *out = (fd_faulty_node){.node = *node};
    if (*edited && h->guess == FD_GUESS_PARAMETER) {
        fd_parameter_set(&fd_parameters[h->which], &out->node, h->value);
        /* fewer pairs, but each turned as it would be among all of them */
        if (h->n) out->node.rope.base = pow(node->rope.base, (double)out->node.rope.n_rot / node->rope.n_rot);
        if (h->other) {
            out->node.rope.scaling = FD_ROPE_SCALING_NONE;
            out->node.rope.attention_factor = 0;
            out->node.weight[0] = out->node.weight[1] = -1;
        }
        if (memcmp(&out->node, node, sizeof *node) == 0) *edited = false;
    }
    if (*edited && h->guess == FD_GUESS_SCALING) scale_rope(h, &out->node.rope);
    if (*edited && h->guess == FD_GUESS_SCALING && h->which == FD_ROPE_SCALING_LINEAR) out->node.weight[0] = -1;
    if (*edited && h->guess == FD_GUESS_INPUT) out->node.input[h->which] = h->other;
    if (*edited && h->guess == FD_GUESS_PARTIAL && h->other) out->node.weight[1] = -1;
    fill_weights(graph, out);
    if (*edited && h->guess == FD_GUESS_WEIGHT && h->node < 0) {
        const bool neighbour = h->kind[0] != '\0', alone = neighbour && !h->other;
        const int32_t other = is_exchanged(h, node) ? h->layer : h->other;
        *edited = take_layer(graph, neighbour ? node->layer + h->n : other, alone ? 1 : FD_MAX_WEIGHTS, out);
    } else if (*edited && h->guess == FD_GUESS_WEIGHT) {
        const fd_weight *own = &graph->weights[node->weight[h->which]], *other = &graph->weights[h->other];
        *edited =
            other->n_row == own->n_row && other->n_col == own->n_col; /* gemma4's layers have heads of several widths */
        if (!*edited) return FD_OK;
        out->node.weight[h->which] = h->other;
        out->weight[h->which] = graph->weights[h->other];
        const int32_t bias = h->n ? fd_bias_of_weight(graph, h->other, node) : -1;
        if (h->n) *edited = bias >= 0;
        if (bias >= 0) out->node.weight[1] = bias, out->weight[1] = graph->weights[bias];
    }
    return FD_OK;
}

bool fd_hypothesis_looks_ahead(const fd_hypothesis *h) {
    switch (h->guess) {
    case FD_GUESS_ROWS: return h->which != FD_ROWS_EARLIER || h->n != 1;
    case FD_GUESS_CACHE: return fd_hypothesis_fits_cache(h) || h->n != 0;
    case FD_GUESS_SLOTS: return is_without_mask(h);
    case FD_GUESS_STRIDES:
    case FD_GUESS_OWN: return true;
    case FD_GUESS_ROUNDED: return fd_is_scaled_type(h->other) && h->n >= FD_SCALE_STEP;
    case FD_GUESS_FAULT: return fd_fault_at(h->fault)->whole_batch;
    default: return false;
    }
}

/* To the nearest of `bits` bits, of two the even one. */
static int32_t round_position(int32_t pos, int32_t bits) {
    int32_t step = 1;
    while (pos / step >= 1 << bits) step *= 2;
    const int32_t down = pos / step, over = 2 * (pos - down * step) - step;
    return (down + (over > 0 || (over == 0 && step > 1 && down % 2 != 0))) * step;
}

/* The last step of the prompt may be shorter. */
static int32_t position_in_step(const fd_hypothesis *h, int32_t pos) {
    const int32_t start = pos - pos % h->n, end = start + h->n < h->first ? start + h->n : h->first;
    if (pos >= h->first) return pos;
    if (h->which == FD_POSITION_ROLLED) return start + (pos - start + end - start - h->other) % (end - start);
    return h->which == FD_POSITION_REVERSED ? start + end - 1 - pos : h->other ? end - 1 : start;
}

static int32_t last_bit(uint64_t bits) {
    int32_t last = 0;
    while (bits >>= 1) last++;
    return last;
}

static int32_t since_restart(uint64_t restarts, int32_t pos) {
    const uint64_t before = pos < 63 ? restarts & ((UINT64_C(2) << pos) - 1) : restarts;
    return before ? pos - last_bit(before) : pos;
}

int32_t fd_hypothesis_position(const fd_hypothesis *h, int32_t pos) {
    if (h->guess != FD_GUESS_POSITION) return pos;
    switch ((fd_position_rule)h->which) {
    case FD_POSITION_OFFSET: return pos + h->n;
    case FD_POSITION_CLAMPED: return pos + h->n > 0 ? pos + h->n : 0;
    case FD_POSITION_MODULO: return pos % h->n;
    case FD_POSITION_AT_MOST: return pos < h->n ? pos : h->n;
    case FD_POSITION_IS: return h->n;
    case FD_POSITION_DIVIDED: return pos / h->n;
    case FD_POSITION_OF_TILE: return pos < h->end ? pos : pos - (pos - h->end) % h->n;
    case FD_POSITION_ROUNDED: return round_position(pos, h->n);
    case FD_POSITION_RESTARTS: return since_restart(h->keys, pos);
    case FD_POSITION_OF_STEP:
    case FD_POSITION_ROLLED:
    case FD_POSITION_REVERSED: return position_in_step(h, pos);
    }
    return pos;
}

bool fd_hypothesis_same(const fd_hypothesis *a, const fd_hypothesis *b) {
    return a->guess == b->guess && a->fault == b->fault && a->node == b->node && a->layer == b->layer &&
           a->ops == b->ops && strcmp(a->kind, b->kind) == 0 && a->n_dim == b->n_dim && a->readers == b->readers &&
           a->heads == b->heads && a->rank == b->rank && a->n_rank == b->n_rank && a->from == b->from &&
           a->to == b->to && a->since == b->since && a->before_bias == b->before_bias && a->which == b->which &&
           a->other == b->other && a->n == b->n && a->first == b->first && a->end == b->end && !(a->value < b->value) &&
           !(a->value > b->value) && a->keys == b->keys;
}

bool fd_hypothesis_is_another_class(const fd_hypothesis *h) {
    return h->guess == FD_GUESS_BLOCKS && h->which == FD_BLOCKS_ROW;
}
