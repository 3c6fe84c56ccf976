/* What can be read off an op's own rows: whose elements they are, which number each row or column has of its own. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/compare/guess_bench.h"

/* The squares of all but the last 32 elements, over all. */
static void most_summed(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++) {
        const float *x = (const float *)args->in[0] + row * n;
        double squares = 0, some = 0;
        for (int64_t i = 0; i < n; i++) {
            squares += (double)x[i] * (double)x[i];
            some += i < n - 32 ? (double)x[i] * (double)x[i] : 0;
        }
        const double eps = (double)args->node->eps, by = sqrt((squares / (double)n + eps) / (some / (double)n + eps));
        for (int64_t i = 0; i < n; i++) ((float *)args->out)[row * n + i] *= (float)by;
    }
}
static void norm_of_most(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = most_summed;
}
static void cut_off(const fd_op_args *args) {
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        float *y = (float *)args->out + i;
        *y = fminf(fmaxf(*y, -0.25f), 0.25f);
    }
}
static void clamped(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = cut_off;
}
/* One element alone is beyond a number of two digits. */
static void cut_one_off(const fd_op_args *args) {
    float *y = args->out, largest = 0, second = 0;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) {
        if (fabsf(y[i]) > largest)
            second = largest, largest = fabsf(y[i]);
        else
            second = fmaxf(second, fabsf(y[i]));
    }
    const float limit = (float)(ceil((double)second * 10) / 10);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++) y[i] = fmaxf(fminf(y[i], limit), -limit);
}
static void one_clamped(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = cut_one_off;
}
static void one_element_less(const fd_op_args *args) {
    run_clean(args);
    ((float *)args->out)[(args->n_pos - 1) * fd_node_width(args->node) + 20] *= 0.7f;
}
static void one_less(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = one_element_less;
}
/* Elements 16…31 of every row are those of 0…15, which are theirs. */
static void tiles_exchanged(const fd_op_args *args) {
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++)
        for (int i = 0; i < 16; i++) {
            float *at = (float *)args->out + row * fd_node_width(args->node) + i, kept = at[0];
            at[0] = at[16];
            at[16] = kept;
        }
}
static void exchanged(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = tiles_exchanged;
}
static void log_probabilities(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    run_clean(args);
    for (int64_t row = 0; row < args->n_pos; row++) {
        float *y = (float *)args->out + row * n;
        double sum = 0;
        for (int64_t i = 0; i < n; i++) sum += exp((double)y[i]);
        for (int64_t i = 0; i < n; i++) y[i] = (float)((double)y[i] - log(sum));
    }
}
static void log_softmax(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = log_probabilities;
}
static void layer_left_out(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = ((const float *)args->in[0])[i];
}
static void branch_left_out(fd_graph *g, fd_node *n) {
    n->input[0] = fd_graph_find(g, "blk.1.l_out");
    n->override = layer_left_out;
}
/* 1 more in the sum of head 2's softmax. */
static void one_head_plus_one(const fd_op_args *args) {
    const int64_t n_head = args->node->shape[0], n_kv = args->n_kv;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * n_head; i++) {
        float *w = (float *)args->out + i * n_kv, largest = 0;
        for (int64_t k = 0; k < n_kv; k++) largest = fmaxf(largest, w[k]);
        for (int64_t k = 0; k < n_kv && i % n_head == 2; k++) w[k] /= 1 + largest;
    }
}
static void plus_one_in_head_2(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = one_head_plus_one;
}

/* K's rows are shorter than Q's, and what is found of these is asked of those. */
static void all_but_the_last_head_turned(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), head = width / args->node->shape[0];
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * width; i++)
        if (i % width >= width - head) ((float *)args->out)[i] = ((const float *)args->in[0])[i];
}
static void rope_of_all_but_the_last(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = all_but_the_last_head_turned;
}

/* Half of an exchange, which is no exchange: the gate's own product is right. */
static void gate_for_up(fd_graph *g, fd_node *n) {
    n->weight[0] = g->nodes[fd_graph_find(g, "blk.1.ffn_gate")].weight[0];
}

/* The second half of the rows of Q, of K and of V is the next layer's: a rank's shard of another layer. */
static const fd_graph *of_graph;
static void half_of_layer_2(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), from = width / 2;
    float *right = malloc(sizeof *right * (size_t)(args->n_pos * width));
    run_clean(args);
    memcpy(right, args->out, sizeof *right * (size_t)(args->n_pos * width));
    fd_op_args other = *args;
    char name[64];
    snprintf(name, sizeof name, "blk.2.%s", strrchr(args->node->name, '.') + 1);
    other.weight[0] = &of_graph->weights[of_graph->nodes[fd_graph_find(of_graph, name)].weight[0]];
    run_clean(&other);
    for (int64_t i = 0; i < args->n_pos * width; i++)
        if (i % width < from) ((float *)args->out)[i] = right[i];
    free(right);
}
static void shard_of_layer_2(fd_graph *g, fd_node *n) {
    of_graph = g;
    if (n->layer != 1 || n->op != FD_OP_MATMUL || !strchr("qkv", n->name[strlen(n->name) - 1])) return;
    n->override = half_of_layer_2;
}

/* The second half of Q's rows is wrong in many ways, and so is K, whose rows are shorter: what is found of Q is asked of K. */
static void half_lost(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), from = width > 128 ? width / 2 : 0;
    run_clean(args);
    for (int64_t i = 0; i < args->n_pos * width; i++)
        if (i % width >= from) ((float *)args->out)[i] = (float)(i % 13 - 6 + i / width);
}
static void shards_lost(fd_graph *g, fd_node *n) {
    (void)g;
    if (strcmp(n->name, "blk.1.attn_q") == 0 || strcmp(n->name, "blk.1.attn_k") == 0) n->override = half_lost;
}

/* A product of other elements than those of its input: element i of a row of `width` that is given. */
static void run_on(const fd_op_args *args, float (*element)(const float *row, int64_t i, int64_t width)) {
    const int64_t width = args->graph->weights[args->node->weight[0]].n_col, n = args->n_pos * width;
    float *x = malloc(sizeof *x * (size_t)n);
    fd_op_args own = *args;
    for (int64_t i = 0; i < n; i++) x[i] = element((const float *)args->in[0] + i / width * width, i % width, width);
    own.in[0] = x;
    run_clean(&own);
    free(x);
}

/* Of every block of 32 factors the last is left out. */
static float without_last_of_block(const float *row, int64_t i, int64_t width) {
    (void)width;
    return i % 32 == 31 ? 0 : row[i];
}
static void blocks_cut_short(const fd_op_args *args) {
    run_on(args, without_last_of_block);
}
static void block_ends(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = blocks_cut_short;
}

/* In blocks of 32 what is multiplied lies as nibbles do: 0, 16, 1, 17, … */
static float as_nibbles(const float *row, int64_t i, int64_t width) {
    (void)width;
    return row[i / 32 * 32 + i % 2 * 16 + i % 32 / 2];
}
static void columns_as_nibbles(const fd_op_args *args) {
    run_on(args, as_nibbles);
}
static void nibbles(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = columns_as_nibbles;
}

/* The last tile overlaps the one before. */
static float last_of_row_twice(const float *row, int64_t i, int64_t width) {
    return row[i] * (i >= width - 32 ? 2 : 1);
}
static void last_tile_twice(const fd_op_args *args) {
    run_on(args, last_of_row_twice);
}
static void tile_twice(fd_graph *g, fd_node *n) {
    (void)g;
    n->override = last_tile_twice;
}

static const guessed read_off[] = {
    {"blk.1.attn_proj", block_ends, "sum_cut_short", "the last 1 of every 32 elements"},
    {"blk.1.ffn_up", gate_for_up, "other_tensor", "the same as blk.1.ffn_gate"},
    {"blk.1.ffn_down", nibbles, "other_input_order", "the halves of every 32 elements interleaved"},
    {"blk.1.ffn_down", tile_twice, "sum_counts_twice", "the last 32 elements of its sums are counted twice"},
    {"blk.1.attn_norm", norm_of_most, "other_statistic", "the first 224 elements"},
    {"blk.1.ffn_gate", clamped, "clamped", "0.25"},
    {"blk.1.ffn_gate", one_clamped, "clamped", "beyond ±"},
    {"blk.1.ffn_gate", one_less, "", ""}, /* 0.7 times what it should be, but what is not? */
    {"blk.1.ffn_up", exchanged, "other_order", "elements 0…15 are the right ones of 16…31, and 16…31 those of 0…15"},
    {"logits", log_softmax, "log_softmax", "log-probabilities"},
    {"blk.2.l_out", branch_left_out, "other_tensor", "blk.1.l_out"},
    {"", shard_of_layer_2, "other_weight", "rows 128…255 are those of blk.2.attn_q.weight"},
    {"", shards_lost, "weight_rows_wrong", ""},
    {"_rope", rope_of_all_but_the_last, "other_tensor", "are those of blk.0.attn_q"},
    {"blk.1.attn_weights", plus_one_in_head_2, "softmax_sum_plus_one", "head 2 alone"},
};

Test(rows, what_can_be_read_off_the_rows_is_named) {
    bench b = open_bench(models[0], (recording){0});
    for (size_t i = 0; i < sizeof read_off / sizeof *read_off; i++) expect_guess(&b, &read_off[i], all, "f32", true);
    close_model(&b);
}
