/* What engines do to memory: views read with other strides, elements that are not written or not read, an adapter's matrix beside a weight;
 * and functions of their own, which the elements tell. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"

/* Heads first in memory, read as if rows came first: rows [n, heads, dim] of input `slot`. */
static float *heads_first(const fd_op_args *args, int slot) {
    const fd_node *read = &args->graph->nodes[args->node->input[slot]];
    const int64_t n = slot == 0 ? args->n_pos : args->n_kv, heads = read->shape[0], dim = read->shape[1];
    const float *right = args->in[slot];
    float *x = malloc(sizeof *x * (size_t)(n * heads * dim));
    for (int64_t i = 0; i < n * heads; i++)
        memcpy(x + i * dim, right + (i % n * heads + i / n) * dim, sizeof *x * (size_t)dim);
    return x;
}
/* While a prompt is taken. */
static void run_restrided(const fd_op_args *args, int slot) {
    float *x = heads_first(args, slot);
    fd_op_args own = *args;
    own.in[slot] = x;
    run_clean(args->n_pos > 1 ? &own : args);
    free(x);
}
static void q_of_other_strides(const fd_op_args *args) {
    run_restrided(args, 0);
}
static void v_of_other_strides(const fd_op_args *args) {
    run_restrided(args, 1);
}
static void all_of_other_strides(const fd_op_args *args) {
    const int first = args->node->op == FD_OP_ATTN_SCORES ? 0 : 1;
    float *x[2] = {NULL, NULL};
    fd_op_args own = *args;
    for (int slot = first; slot < 2; slot++) own.in[slot] = x[slot] = heads_first(args, slot);
    run_clean(&own);
    for (int slot = first; slot < 2; slot++) free(x[slot]);
}
static void restride_all(fd_graph *g, fd_node *n) {
    (void)g;
    if (n->op == FD_OP_ATTN_SCORES || n->op == FD_OP_ATTN_MIX) n->override = all_of_other_strides;
}
static void heads_not_transposed(const fd_op_args *args) {
    run_restrided(args, 0);
}
static void q_of_first_row(const fd_op_args *args) {
    const int64_t width = fd_node_width(&args->graph->nodes[args->node->input[0]]);
    float *x = malloc(sizeof *x * (size_t)(args->n_pos * width));
    fd_op_args own = *args;
    for (int64_t row = 0; row < args->n_pos; row++) memcpy(x + row * width, args->in[0], sizeof *x * (size_t)width);
    own.in[0] = x;
    run_clean(&own);
    free(x);
}

static void every_second_zero(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 1; i < args->n_pos * fd_node_width(args->node); i += 2) ((float *)args->out)[i] = 0;
}

/* The first 32 of every 128 inputs: a block of a superblock. */
static void first_block_unread(const fd_op_args *args) {
    const int64_t n = args->n_pos * args->graph->weights[args->node->weight[0]].n_col;
    float *x = malloc(sizeof *x * (size_t)n);
    fd_op_args own = *args;
    for (int64_t i = 0; i < n; i++) x[i] = i % 128 < 32 ? 0 : ((const float *)args->in[0])[i];
    own.in[0] = x;
    run_clean(&own);
    free(x);
}

/* In steps of one row elements 64…95 stay what the prompt's last row left there. */
static void tile_not_written(const fd_op_args *args) {
    static float kept[32];
    float *y = args->out;
    run_clean(args);
    if (args->n_pos > 1)
        memcpy(kept, y + (args->n_pos - 1) * fd_node_width(args->node) + 64, sizeof kept);
    else
        memcpy(y + 64, kept, sizeof kept);
}

/* x A B with two columns and rows of no pattern. */
static void with_adapter(const fd_op_args *args) {
    const int64_t n_in = args->graph->weights[args->node->weight[0]].n_col, n_out = fd_node_width(args->node);
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++)
        for (int r = 0; r < 2; r++) {
            double along = 0;
            for (int64_t i = 0; i < n_in; i++)
                along += (double)((const float *)args->in[0])[row * n_in + i] * sin((double)(3 + r) * (double)i);
            for (int64_t i = 0; i < n_out; i++)
                ((float *)args->out)[row * n_out + i] += (float)(0.02 * along * cos((double)(5 + r) * (double)(i + 1)));
        }
}

/* A slope that is no activation's. */
static void other_slope(const fd_op_args *args) {
    const float *gate = args->in[0], *up = args->in[1];
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = gate[i] / (1 + expf(-1.3f * gate[i])) * up[i];
}

/* e^x by a polynomial of too few terms. */
static float coarse_exp(float x) {
    const float y = x * 1.44269504f, whole = floorf(y), f = y - whole;
    return ldexpf(1 + f * (0.6951f + f * (0.2262f + f * 0.0782f)), (int)whole);
}
static void coarse_softmax(const fd_op_args *args) {
    const int32_t n_head = args->node->shape[0], n_kv = args->n_kv;
    for (int32_t i = 0; i < args->n_pos * n_head; i++) {
        const int32_t own = args->pos0 + i / n_head;
        const float *s = (const float *)args->in[0] + (int64_t)i * n_kv;
        float *w = (float *)args->out + (int64_t)i * n_kv, most = s[0], sum = 0;
        for (int32_t t = 1; t <= own; t++) most = fmaxf(most, s[t]);
        for (int32_t t = 0; t < n_kv; t++) sum += w[t] = t <= own ? coarse_exp(s[t] - most) : 0;
        for (int32_t t = 0; t <= own; t++) w[t] /= sum;
    }
}

/* Steps after the prompt are fed its tokens again. */
static void tokens_again(const fd_op_args *args) {
    static int32_t fed[N_PREFILL];
    fd_op_args own = *args;
    if (args->pos0 == 0) memcpy(fed, args->tokens, sizeof fed);
    if (args->pos0 >= N_PREFILL) own.tokens = fed + args->pos0 - N_PREFILL;
    run_clean(&own);
}

/* Behind the first token each is fed the next one's, which is known but for the last. */
static void next_tokens(const fd_op_args *args) {
    static int32_t fed[N_PREFILL + N_DECODE];
    fd_op_args own = *args;
    run_clean(args);
    if (args->pos0 == 0) memcpy(fed, args->tokens, sizeof *fed * (size_t)(args->n_pos + N_DECODE));
    own.tokens = fed + args->pos0 + 1;
    if (args->pos0 + args->n_pos < N_PREFILL + N_DECODE) run_clean(&own);
}

/* In the cache, in every step of several rows. */
static void rows_exchanged(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    float *rows = (float *)args->out + args->pos0 * width, kept;
    run_clean(args);
    for (int64_t i = 0; i < width && args->n_pos > 1; i++) {
        kept = rows[i];
        rows[i] = rows[width + i];
        rows[width + i] = kept;
    }
}

/* Steps of one row write K, turned, where V belongs. */
static float k_rows[N_PREFILL * 256];
static void kept_for_v(const fd_op_args *args) {
    run_clean(args);
    memcpy(k_rows, args->out, sizeof *k_rows * (size_t)(args->n_pos * fd_node_width(args->node)));
}
static void k_in_decode(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node);
    run_clean(args);
    if (args->n_pos == 1) memcpy((float *)args->out + args->pos0 * width, k_rows, sizeof *k_rows * (size_t)width);
}
static void write_k(fd_graph *g, fd_node *v) {
    for (fd_node *n = g->nodes; n < v; n++)
        if (n->layer == v->layer && fd_ends_with(n->name, "attn_k_rope")) n->override = kept_for_v;
    v->override = k_in_decode;
}

#define OVERRIDE(name, how)                                                                                            \
    static void name(fd_graph *g, fd_node *n) {                                                                        \
        (void)g;                                                                                                       \
        n->override = how;                                                                                             \
    }
OVERRIDE(restride_q, q_of_other_strides)
OVERRIDE(restride_v, v_of_other_strides)
OVERRIDE(restride_heads, heads_not_transposed)
OVERRIDE(exchange, rows_exchanged)
OVERRIDE(repeat_q, q_of_first_row)
OVERRIDE(halve, every_second_zero)
OVERRIDE(skip_blocks, first_block_unread)
OVERRIDE(keep_tile, tile_not_written)
OVERRIDE(adapt, with_adapter)
OVERRIDE(slope, other_slope)
OVERRIDE(coarsen, coarse_softmax)
OVERRIDE(feed_again, tokens_again)
OVERRIDE(feed_next, next_tokens)

static const struct {
    guessed bug;
    const char *const *recorded;
} bugs[] = {
    {{"attn_scores", restride_q, "strides_ignored", "Q stands in memory with heads first"}, &all},
    {{"attn_scores", restride_q, "strides_ignored", "Q stands in memory with heads first"}, &fused},
    {{"blk.1.attn_out", restride_v, "strides_ignored", "V stands in memory with heads first"}, &layers},
    {{"attn_proj", restride_heads, "strides_ignored", "attn_out stands in memory with heads first"}, &all},
    {{"cache_v", exchange, "other_rows", "the rows of positions 0 and 1 stand in each other's place"}, &all},
    {{"cache_v", write_k, "k_written_twice", "K is written to the cache of V, too"}, &all},
    {{"", restride_all, "strides_ignored", "Q, K and V stand in memory with heads first"}, &fused},
    {{"attn_scores", repeat_q, "strides_ignored", "Q of the step's first position"}, &all},
    {{"attn_proj", halve, "zeros", "of every 2 element 1 is zero"}, &all},
    {{"blk.2.ffn_up", skip_blocks, "sum_cut_short", "elements 0…31 of every 128"}, &fused},
    {{"blk.1.ffn_down", keep_tile, "other_rows", "elements 64…95 of every row are those of position 5"}, &all},
    {{"attn_v", adapt, "low_rank_term", "a matrix of rank 2 is added to blk.0.attn_v.weight"}, &all},
    {{"ffn_act", slope, "other_function", "the activation"}, &all},
    {{"attn_weights", coarsen, "other_function", "softmax's exponential"}, &all},
    {{"token_embd", feed_again, "earlier_token", "6 positions before"}, &layers},
    {{"token_embd", feed_next, "later_token", "1 position after"}, &all},
};

Test(memory, what_was_read_or_left_in_another_place_is_named) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof bugs / sizeof *bugs; i++)
        expect_guess(&b, &bugs[i].bug, *bugs[i].recorded, "f32", true);
    close_model(&b);
}

/* Scores as another kernel sums them, and weights of these: attention's output follows from its own. */
static double off;
static void by_another_kernel(const fd_observation *seen, float *rows) {
    static float scores[64 * 64 * 16];
    const int32_t n_head = seen->node->shape[0], n_kv = (int32_t)(seen->row_stride / (n_head ? n_head : 1));
    if (fd_ends_with(seen->node->name, "attn_scores"))
        for (int64_t i = 0; i < seen->n_pos * seen->row_stride; i++)
            scores[i] = rows[i] = (float)((double)rows[i] * (1 + off * sin(17.0 * (double)i)));
    if (!fd_ends_with(seen->node->name, "attn_weights")) return;
    for (int64_t i = 0; i < seen->n_pos * n_head; i++) {
        const int64_t own = seen->pos0 + i / n_head;
        double most = -INFINITY, sum = 0;
        for (int64_t t = 0; t <= own; t++) most = fmax(most, (double)scores[i * n_kv + t]);
        for (int64_t t = 0; t <= own; t++) sum += exp((double)scores[i * n_kv + t] - most);
        for (int64_t t = 0; t <= own; t++) rows[i * n_kv + t] = (float)(exp((double)scores[i * n_kv + t] - most) / sum);
    }
}

Test(memory, weights_that_a_second_kernel_recorded_are_a_fused_ones_but_for_rounding) {
    static const double cases[] = {1e-6, 1e-2};
    bench b = open_bench(models[0], (recording){0});
    for (int i = 0; i < 2; i++) {
        off = cases[i];
        fd_verdict v = judged(&b, b.graph, (recording){.emulated = "f32", .misrecord = by_another_kernel});
        cr_expect(i ? v.status != FD_NOISE : v.status == FD_NOISE, "off by %g: %s at %s", off,
                  fd_verdict_status_name(v.status), v.divergence.node);
        fd_verdict_free(&v);
    }
    close_model(&b);
}

/* Times 1.5 from position 2 on, and 2 from position 4 on. */
static void scaled_by_position(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n; i++) {
        const int64_t pos = args->pos0 + i / n;
        ((float *)args->out)[i] *= pos < 2 ? 1.0f : pos < 4 ? 1.5f : 2.0f;
    }
}

Test(memory, what_is_true_of_some_rows_of_a_later_step_is_no_name) {
    bench b = open_bench(models[0], (recording){.first_chunk = 3});
    fd_graph *faulty;
    fd_error err = {0};
    must(fd_graph_clone(b.graph, &faulty, &err), &err);
    faulty->nodes[fd_graph_find(faulty, "blk.2.attn_proj")].override = scaled_by_position;
    fd_verdict v = judged(&b, faulty, (recording){.emulated = "f32", .first_chunk = 3});
    cr_expect_str_eq(v.divergence.node, "blk.2.attn_proj");
    cr_expect(!v.diagnosis.explanation.named, "named %s", v.diagnosis.explanation.remaining[0].summary);
    fd_verdict_free(&v);
    fd_graph_free(faulty);
    close_model(&b);
}

/* A few heads' mistake of attention has as few directions in what is made of its output as an adapter's matrix. */
static void two_heads_scattered(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node), dim = args->node->shape[1];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n; i++)
        if (i % n < 2 * dim)
            ((float *)args->out)[i] += (float)sin((double)(args->pos0 + i / n) * 2.3) * cosf((float)(i % n) * 1.7f);
}

Test(memory, few_directions_behind_an_input_that_was_not_recorded_are_no_adapter) {
    bench b = open_bench(models[0], (recording){0});
    fd_graph *faulty = spoiled(&b, "blk.1.attn_out", two_heads_scattered);
    fd_verdict v =
        judged(&b, faulty, (recording){.emulated = "f32", .tensors = "*norm,*attn_[qkv],*proj,*inp,*l_out,logits"});
    const fd_explanation *e = &v.diagnosis.explanation;
    cr_expect_str_eq(v.divergence.node, "blk.1.attn_proj");
    cr_expect(!e->named || strcmp(e->remaining[0].name, "low_rank_term") != 0, "%s", e->remaining[0].summary);
    fd_verdict_free(&v);
    close_model(&b);
}
