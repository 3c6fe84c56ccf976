/* What single elements show; what is cut off or exchanged inside a layer; and what is wrong in every layer alike, of which the logits
 * alone may tell. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"
#include "tests/compare/said.h"

static const int32_t small[N_PREFILL + N_DECODE] = {1, 30, 45, 103, 26, 7, 51, 88}; /* of a vocabulary of 128 */

/* ---- single elements ---- */

static bool is_dropped(const fd_op_args *args, int64_t i) {
    uint64_t at = (uint64_t)args->pos0 * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u + 1;
    for (int k = 0; k < 2; k++) at = (at ^ at >> 31) * 0x94d049bb133111ebu;
    return (at >> 33) % 10 == 0;
}
static void drop(const fd_op_args *args, float by) {
    float *y = args->out;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_row_stride(args->node, args->n_kv); i++)
        y[i] = is_dropped(args, i) ? 0 : y[i] * by;
}
static void dropout(const fd_op_args *args) {
    drop(args, 1 / 0.9f);
}
static void lost_elements(const fd_op_args *args) {
    drop(args, 1);
}
static void ones(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) ((float *)args->out)[i] = 1;
}

/* ---- inside a layer ---- */

#define LIMIT 0.02f

static void cut(const fd_op_args *args) {
    float *y = args->out;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) y[i] = fmaxf(fminf(y[i], 1), -1);
}
/* Most of it. */
static void cut_at_a_tenth(const fd_op_args *args) {
    float *y = args->out;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) y[i] = fmaxf(fminf(y[i], 0.1f), -0.1f);
}
/* Reshaped to [heads, rows, …] where a transposition is meant. */
static void not_transposed(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0], dim = args->node->shape[1], n = args->n_pos * n_head * dim;
    float *rows = copy_input(args, 0, n);
    for (int64_t row = 0; row < args->n_pos; row++)
        for (int64_t head = 0; head < n_head; head++)
            memcpy(rows + (row * n_head + head) * dim, (const float *)args->in[0] + (head * args->n_pos + row) * dim,
                   sizeof *rows * (size_t)dim);
    run_with(args, 0, rows);
}
static void activation_cut(const fd_op_args *args) {
    float *y = args->out;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        const float most = LIMIT * fabsf(((const float *)args->in[1])[i]);
        y[i] = fmaxf(fminf(y[i], most), -most);
    }
}
static void first_rows_exchanged(const fd_op_args *args) {
    const int64_t width = fd_node_width(&args->graph->nodes[args->node->input[1]]);
    float *rows = copy_input(args, 1, args->n_kv * width);
    for (int64_t i = 0; i < width && args->n_kv > 1; i++) {
        const float kept = rows[i];
        rows[i] = rows[width + i];
        rows[width + i] = kept;
    }
    run_with(args, 1, rows);
}
static void larger_in_decode(const fd_op_args *args) {
    float *y = args->out;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node) && args->n_pos == 1; i++) y[i] *= 1.1f;
}
static void rolled(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    float *rows = copy_input(args, 0, args->n_pos * width);
    if (args->n_pos > 1) {
        memcpy(rows, (const float *)args->in[0] + (args->n_pos - 1) * width, sizeof *rows * (size_t)width);
        memcpy(rows + width, args->in[0], sizeof *rows * (size_t)((args->n_pos - 1) * width));
    }
    run_with(args, 0, rows);
}

/* ---- in every layer ---- */

/* Each half of a row by its own root mean square. */
static void normed_by_halves(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node), half = n / 2;
    const double eps = (double)args->node->eps;
    run_clean(args);
    for (int64_t at = 0; at < args->n_pos * n; at += half) {
        const float *x = (const float *)args->in[0], *row = x + at / n * n;
        double all = 0, own = 0;
        for (int64_t i = 0; i < n; i++) all += (double)row[i] * (double)row[i];
        for (int64_t i = at; i < at + half; i++) own += (double)x[i] * (double)x[i];
        const double by = sqrt((all / (double)n + eps) / (own / (double)half + eps));
        for (int64_t i = at; i < at + half; i++) ((float *)args->out)[i] *= (float)by;
    }
}
static void norm_by_halves(fd_graph *g, fd_node *n) {
    (void)g;
    if (n->op == FD_OP_RMS_NORM) n->override = normed_by_halves;
}
static void turned_by_half(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    for (int32_t r = 0; r < args->n_pos; r++) {
        fd_op_args row = *args;
        row.n_pos = 1;
        row.pos0 = (args->pos0 + r) / 2;
        row.in[0] = (const float *)args->in[0] + r * width;
        row.out = (float *)args->out + r * width;
        run_clean(&row);
    }
}

static void halves_interleaved(const fd_op_args *args) {
    const int64_t dim = args->node->shape[1], half = dim / 2, n = args->n_pos * fd_node_width(args->node);
    float *y = args->out, *right = malloc(sizeof *right * (size_t)n);
    cr_assert(right);
    run_clean(args);
    memcpy(right, y, sizeof *y * (size_t)n);
    for (int64_t i = 0; i < n; i++) y[i] = right[i - i % dim + i % dim / 2 + i % 2 * half];
    free(right);
}
static void of_layer_before(fd_graph *g, fd_node *n) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.ffn_down.weight", n->layer - 1);
    for (int32_t w = 0; w < g->n_weight && n->layer > 0; w++)
        if (strcmp(g->weights[w].name, name) == 0) n->weight[0] = w;
}

static void tiles_exchanged(const fd_op_args *args) {
    float *y = args->out;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        const float kept = y[i];
        if (i / 32 % 2 == 0) y[i] = y[i + 32], y[i + 32] = kept;
    }
}
/* That norm's weight, and no exchange: attention's own is right. */
static void of_attention(fd_graph *g, fd_node *n) {
    char name[64];
    snprintf(name, sizeof name, "blk.%d.attn_norm.weight", n->layer);
    for (int32_t w = 0; w < g->n_weight; w++)
        if (strcmp(g->weights[w].name, name) == 0) n->weight[0] = w;
}
/* Layers 0 and 1 in each other's place. */
static void exchanged(fd_graph *g, fd_node *n) {
    for (int k = 0; k < FD_MAX_WEIGHTS && (n->layer == 0 || n->layer == 1); k++) {
        char name[64];
        if (n->weight[k] < 0) continue;
        snprintf(name, sizeof name, "blk.%d%s", 1 - n->layer, strchr(g->weights[n->weight[k]].name + 4, '.'));
        for (int32_t w = 0; w < g->n_weight; w++)
            if (strcmp(g->weights[w].name, name) == 0) {
                n->weight[k] = w;
                break;
            }
    }
}

static const struct {
    const char *arch;     /* NULL: the bundled model */
    const char *nodes[2]; /* "": all */
    fd_override_fn override;
    void (*edit)(fd_graph *graph, fd_node *node);
    const char *name, *says;
    const char *tensors;
} bugs[] = {
    {NULL, {"attn_proj"}, dropout, NULL, "dropout_active", "p = 0.1", "*"},
    {NULL, {"attn_weights"}, dropout, NULL, "dropout_active", "p = 0.1", "*"},
    {NULL, {"attn_proj"}, lost_elements, NULL, "", "", "*"},
    {NULL, {"ffn_up"}, ones, NULL, "constant", "all its values are 1", "*"},
    {NULL, {"l_out"}, cut, NULL, "clamped", "beyond ± 1", "token_embd,*l_out,logits"},
    {NULL, {"ffn_act"}, activation_cut, NULL, "clamped", "is cut off beyond ± 0.02", "token_embd,*l_out,logits"},
    {"qwen2-dense", {"attn_proj"}, cut_at_a_tenth, NULL, "clamped", "beyond ± 0.1", "*"},
    {NULL,
     {"attn_q_rope"},
     not_transposed,
     NULL,
     "strides_ignored",
     "read as if heads came first",
     "token_embd,*l_out,logits"},
    {NULL, {"attn_out"}, first_rows_exchanged, NULL, "cache_rows_wrong", "the V rows of positions 0 and 1", "*"},
    {NULL,
     {"attn_out"},
     first_rows_exchanged,
     NULL,
     "cache_rows_wrong",
     "the V rows of positions 0 and 1",
     "token_embd,*l_out,logits"},
    {NULL,
     {"attn_q_rope", "attn_k_rope"},
     larger_in_decode,
     NULL,
     "other_rope_magnitude",
     "factor of cos and sin 1.1",
     "*norm,*attn_[qkv],*proj,*inp,*down,*l_out,logits"},
    {NULL, {"cache_v"}, rolled, NULL, "other_rows", "around the end of the step", "token_embd,*l_out,logits"},
    {NULL, {""}, NULL, norm_by_halves, "other_statistic", "each of 2 parts", "token_embd,*l_out,logits"},
    {NULL,
     {"attn_q_rope", "attn_k_rope"},
     turned_by_half,
     NULL,
     "other_position",
     "position / 2",
     "token_embd,*l_out,logits"},
    {"qwen2-dense", {""}, NULL, norm_by_halves, "other_statistic", "each of 2 parts", "logits"},
    {NULL,
     {"ffn_up"},
     tiles_exchanged,
     NULL,
     "other_order",
     "every 2 groups of 32",
     "token_embd,*norm,*attn_[qkv],*attn_out,*proj,*inp,*down,*l_out,logits"},
    {NULL,
     {"ffn_norm"},
     NULL,
     of_attention,
     "other_weight",
     "attn_norm.weight",
     "token_embd,*attn_[qkv],*attn_out,*proj,*inp,*down,*l_out,logits"},
    {"qwen2-dense", {"ffn_down"}, NULL, of_layer_before, "other_weight", "the matrix of the layer before", "logits"},
    {"qwen2-dense", {"l_out"}, cut, NULL, "clamped", "beyond ± 1, at every l_out", "logits"},
    {"llama-dense", {""}, NULL, exchanged, "other_layer", "layers 0 and 1 have each other's weights", "logits"},
    {"llama-dense", {"attn_q"}, halves_interleaved, NULL, "other_order", "interleaved, at every attn_q", "logits"},
    {"stablelm-dense",
     {"attn_q", "attn_k"},
     halves_interleaved,
     NULL,
     "other_order",
     "interleaved, at every attn_q and attn_k",
     "logits"},
};

Test(layers, what_is_cut_off_exchanged_or_anothers_is_named) {
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++) {
        bench b = bugs[i].arch ? open_arch(bugs[i].arch) : open_model(models[0]);
        b.ref = record(b.graph, (recording){.tokens = bugs[i].arch ? small : NULL});
        fd_graph *faulty = graph_copy(&b);
        for (int32_t k = 0; k < faulty->n_node; k++)
            for (int of = 0; of < 2 && bugs[i].nodes[of]; of++) {
                fd_node *node = &faulty->nodes[k];
                if (bugs[i].nodes[of][0] && strcmp(fd_fault_suffix(node), bugs[i].nodes[of]) != 0) continue;
                if (bugs[i].edit) bugs[i].edit(faulty, node);
                if (bugs[i].override) node->override = bugs[i].override;
            }
        const recording how = {.emulated = "f32", .tensors = bugs[i].tensors, .tokens = bugs[i].arch ? small : NULL};
        fd_verdict v = judged(&b, faulty, how);
        const fd_explanation *e = &v.diagnosis.explanation;
        const char *name = e->named ? e->remaining[0].name : "", *says = e->named ? e->remaining[0].summary : "";
        cr_expect_eq(v.status, FD_DIVERGED, "%s", bugs[i].says);
        cr_expect(strcmp(name, bugs[i].name) == 0 && strstr(says, bugs[i].says), "%s, %s: named \"%s\" (%s); %s",
                  bugs[i].name, bugs[i].tensors, name, says, unnamed_of(e));
        fd_verdict_free(&v);
        fd_graph_free(faulty);
        close_model(&b);
    }
}

/* Σ w·x with the weights in the other order is what it is with the terms in the other order. */
Test(layers, the_same_sum_in_another_order_is_one_name_with_the_other) {
    bench b = open_arch("llama-moe");
    b.ref = record(b.graph, (recording){.tokens = small});
    fd_graph *faulty = faulted(&b, "moe_weights_reversed");
    fd_verdict v =
        judged(&b, faulty, (recording){.emulated = "f32", .tensors = "token_embd,*l_out,logits", .tokens = small});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect(e->named, "%s", unnamed_of(e));
    cr_expect(among_remaining(e, "moe_weights_reversed") && among_remaining(e, "moe_experts_reversed"), "%s",
              e->remaining[0].name);
    fd_verdict_free(&v);
    close_model(&b);
}
