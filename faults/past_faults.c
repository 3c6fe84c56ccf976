/* What a step makes of the rows that earlier steps left in the cache: its own before them, or K turned once more. */
#include <stdlib.h>
#include <string.h>

#include "faults/attention_rule.h"

/* Concat(new, past). */
static const fd_attention_rule new_first = {.new_first = true};
FD_OVERRIDE(new_first_k, fd_rule_scores(args, new_first))
FD_OVERRIDE(new_first_v, fd_rule_mix(args, new_first))
FD_EDIT(new_first_both, node->override = node->op == FD_OP_ATTN_SCORES ? new_first_k
                                         : node->op == FD_OP_ATTN_MIX  ? new_first_v
                                                                       : node->override)

static const fd_node *rope_of_k(const fd_graph *graph, const fd_node *node) {
    const int32_t rope = fd_fault_sibling(graph, node, "attn_k_rope");
    return rope < 0 ? NULL : &graph->nodes[rope];
}

/* Turns `rows` [n, width] in place, of position 0 on, by its own position each. `table`: [n][n_rot], cosines and then sines. */
static void turn(const fd_node *rope, float *rows, int32_t n, const float *table) {
    const int32_t half = rope->rope.n_rot / 2, dim = rope->shape[1];
    const bool neighbours = rope->rope.pairing == FD_ROPE_INTERLEAVED;
    for (int64_t at = 0; at < (int64_t)n * rope->shape[0]; at++) {
        float *x = rows + at * dim;
        const float *c = table + at / rope->shape[0] * half, *s = c + (int64_t)n * half;
        for (int32_t i = 0; i < half; i++) {
            float *a = x + (neighbours ? 2 * i : i), *b = x + (neighbours ? 2 * i + 1 : i + half);
            const float first = *a;
            *a = first * c[i] - *b * s[i];
            *b = first * s[i] + *b * c[i];
        }
    }
}

/* K is kept as it was turned, and all rows that a step finds there are turned by their positions; its own are turned once. */
static void past_turned_again(const fd_op_args *args) {
    const fd_node *rope = rope_of_k(args->graph, args->node);
    const int64_t n = args->n_kv, width = fd_node_width(rope), n_rot = rope->rope.n_rot;
    float *turned = malloc(sizeof *turned * (size_t)(n * width)), *table = malloc(sizeof *table * (size_t)(n * n_rot));
    if (turned && table) {
        memcpy(turned, args->in[1], sizeof *turned * (size_t)(n * width));
        fd_rope_table(&rope->rope, fd_fault_weight(args->graph, rope, 0), 0, args->n_kv, table, table + n * n_rot / 2);
        turn(rope, turned, args->n_kv, table);
        fd_rule_scores(args, (fd_attention_rule){.past_k = turned});
    } else {
        fd_fault_nan(args, (int64_t)args->node->shape[0] * n);
    }
    free(turned);
    free(table);
}
FD_APPLIES(turns_k, rope_of_k(graph, node) != NULL)

#define PAST(name, located, op_, summary_)                                                                             \
    .info = {name, "kv_cache", summary_, located, false, .whole_batch = true, .later = true}, .op = op_

static const fd_fault rows[] = {
    {PAST("kv_new_rows_first", "attn_scores", FD_OP_COUNT,
          "a step's rows of K and V stand before those of earlier steps, and the mask goes by where they stand"),
     .edit = new_first_both},
    {PAST("k_new_rows_first", "attn_scores", FD_OP_ATTN_SCORES,
          "a step's rows of K stand before those of earlier steps, V's behind them"),
     .override = new_first_k},
    {PAST("v_new_rows_first", "attn_out", FD_OP_ATTN_MIX,
          "a step's rows of V stand before those of earlier steps, K's behind them"),
     .override = new_first_v},
    {PAST("k_past_turned_again", "attn_scores", FD_OP_ATTN_SCORES,
          "RoPE turns the rows of K that a step finds in the cache, which were turned before they were kept"),
     .applies = turns_k, .override = past_turned_again},
};
const fd_fault_family fd_past_faults = FD_FAULT_FAMILY(rows);
