/* What an op is given under a hypothesis. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/evaluate/kept_types.h"
#include "compare/evaluate/workbench.h"
#include "compare/hypothesis/internal.h"
#include "model/gguf/quant.h"

void fd_inputs_free(fd_op_inputs *in) {
    for (int i = 0; i < in->n_changed; i++) free(in->changed[i]);
    free(in->tables);
    free(in->tokens);
    fd_variant_free(&in->hidden);
}

static int64_t rows_of(const fd_op_args *args, const fd_node *node) {
    return node->op == FD_OP_KV_WRITE ? args->n_kv : args->n_pos;
}

/* The rows of the cache that `from` writes. */
static fd_code change_cache(fd_evaluation *ev, const fd_node *from, float *rows, int64_t n_row, int64_t width,
                            fd_error *err) {
    const fd_node *other = ev->h.which == FD_CACHE_OF ? &ev->bench->request->args.graph->nodes[ev->h.other] : from;
    const float *theirs = NULL;
    if (other != from && fd_node_width(other) == width) {
        fd_work *w = NULL;
        theirs = fd_bench_recorded(ev->bench->request, other->id);
        if (!theirs) FD_TRY(fd_bench_unrecorded(&ev->bench->plain, other->id, &w, err));
        if (w) theirs = w->v.memory;
    }
    fd_hypothesis_cache(&ev->h, theirs, rows, n_row, width);
    if (ev->h.which == FD_CACHE_BLOCKS)
        fd_cache_blocks(ev->h.n, fd_explain_kv_type(ev->bench->request, from), rows, n_row, width);
    return FD_OK;
}

/* A copy of the rows that the hypothesis changes (`type` FD_DOT_AS_IS), or that the class rounds before it multiplies. */
static fd_code change_input(fd_evaluation *ev, const fd_op_args *args, int slot, fd_dot_type type, fd_op_inputs *in,
                            const float **x, fd_error *err) {
    const fd_node *from = &args->graph->nodes[args->node->input[slot]];
    int64_t n_row = rows_of(args, from), width = fd_node_row_stride(from, args->n_kv);
    float *copy = malloc(sizeof *copy * (size_t)(n_row * width));
    if (!copy) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", from->name);
    in->changed[in->n_changed++] = copy;
    memcpy(copy, *x, sizeof *copy * (size_t)(n_row * width));
    if (type == FD_DOT_AS_IS && ev->h.guess == FD_GUESS_CACHE)
        FD_TRY(change_cache(ev, from, copy, n_row, width, err));
    else if (type == FD_DOT_AS_IS)
        fd_hypothesis_input(&ev->h, args->node, slot, copy, from->op == FD_OP_KV_WRITE ? 0 : args->pos0, n_row, width);
    else if (fd_dot_is_blocks(type) && ev->h.guess == FD_GUESS_BLOCKS && fd_hypothesis_may_concern(&ev->h, args->node))
        fd_dot_round_by((fd_block_rule)ev->h.which, type, copy, n_row, width);
    else
        fd_dot_round_input(type, args->graph, args->node, copy, n_row, width);
    *x = copy;
    return FD_OK;
}

/* The same for the plain rows and every sample. */
static fd_code change_inputs(fd_evaluation *ev, const fd_op_args *args, int slot, fd_dot_type type, fd_op_inputs *in,
                             fd_error *err) {
    const float *before = in->x[slot];
    FD_TRY(change_input(ev, args, slot, type, in, &in->x[slot], err));
    for (int d = 0; d < FD_N_SAMPLE; d++) {
        if (in->sample[d][slot] == before)
            in->sample[d][slot] = in->x[slot];
        else
            FD_TRY(change_input(ev, args, slot, type, in, &in->sample[d][slot], err));
    }
    return FD_OK;
}

/* Scores past a row's own position, and those that a window hides where a dump has them as they were before the mask, are
 * recorded as -inf whatever the candidate had there. A fault of the mask shows in what softmax makes of them, so those are computed
 * again; what was recorded stands, unless the fault hides it. */
static fd_code unhide(fd_evaluation *ev, const fd_op_args *args, fd_op_inputs *in, bool *tried, fd_error *err) {
    int32_t id = args->node->input[0];
    const fd_node *node = id < 0 ? NULL : &args->graph->nodes[id];
    if (!node || !node->over_kv || ev->h.guess != FD_GUESS_FAULT || !fd_bench_recorded(ev->bench->request, id))
        return FD_OK;
    FD_TRY(fd_bench_edit(ev, id, err));
    if (!ev->works[id].edited) return FD_OK;
    FD_TRY(fd_bench_compute(ev, id, false, &in->hidden, NULL, err));
    if (in->hidden.state == FD_VARIANT_UNTRIED) *tried = false;
    if (in->hidden.state != FD_VARIANT_COMPUTED) return FD_OK;
    int64_t stride = fd_node_row_stride(node, args->n_kv);
    for (int64_t i = 0; i < args->n_pos * stride; i++) {
        const bool seen = i % args->n_kv <= args->pos0 + i / stride && !isinf(in->hidden.rows[i]);
        if (seen && isfinite(in->x[0][i])) in->hidden.rows[i] = in->x[0][i];
    }
    in->x[0] = in->hidden.rows;
    return FD_OK;
}

/* What an input becomes before it is multiplied; rows of a cache in blocks are what they are. */
static fd_dot_type type_of_input(const fd_explain_request *r, const fd_op_args *args, int slot) {
    const uint32_t kept = fd_explain_kv_type(r, args->node);
    if (kept == FD_F32) return fd_dot_type_of(r->numerics, args->node, fd_dot_weight(args), slot);
    return slot == 0 ? fd_dot_type_beside_cache(r->numerics, args->node, kept) : FD_DOT_AS_IS;
}

/* *tried false: something that the node reads is not known. */
fd_code fd_inputs_gather(fd_evaluation *ev, const fd_op_args *args, fd_op_inputs *in, bool *tried, fd_error *err) {
    const fd_explain_request *r = ev->bench->request;
    *tried = true;
    for (int k = 0; k < FD_MAX_INPUTS && *tried; k++) {
        int32_t id = args->node->input[k];
        if (id < 0) continue;
        fd_work *w = NULL;
        in->x[k] = fd_bench_recorded(r, id);
        if (!in->x[k]) {
            FD_TRY(fd_bench_unrecorded(ev, id, &w, err));
            in->x[k] = w ? w->v.memory : NULL;
        }
        *tried = in->x[k] != NULL;
        for (int d = 0; d < FD_N_SAMPLE; d++) {
            in->sample[d][k] = w && w->sample[d] ? w->sample[d] : in->x[k];
            in->any_sample |= w && w->sample[d];
        }
        if (!*tried) continue;
        const bool changes = fd_hypothesis_changes_input(&ev->h, args->node, k);
        const fd_dot_type type = type_of_input(r, args, k);
        /* a sum loses elements of blocks that were made of all of them */
        const bool after = changes && ev->h.guess == FD_GUESS_INPUT_TAIL && fd_dot_is_blocks(type);
        if (changes && !after) FD_TRY(change_inputs(ev, args, k, FD_DOT_AS_IS, in, err));
        in->unrounded[k] = in->x[k];
        if (type != FD_DOT_AS_IS) FD_TRY(change_inputs(ev, args, k, type, in, err));
        if (after) FD_TRY(change_inputs(ev, args, k, FD_DOT_AS_IS, in, err));
    }
    return *tried ? unhide(ev, args, in, tried, err) : FD_OK;
}

fd_code fd_inputs_make_tables(const fd_evaluation *ev, fd_op_args *args, fd_op_inputs *in, fd_error *err) {
    const fd_node *node = args->node;
    int64_t half = node->rope.n_rot / 2, n = half * args->n_kv;
    bool moved = ev->h.guess == FD_GUESS_POSITION && fd_hypothesis_may_concern(&ev->h, node);
    in->tables = malloc(sizeof *in->tables * (size_t)(2 * n));
    if (!in->tables) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for rope tables");
    const fd_weight *factors = node->weight[0] >= 0 ? args->weight[0] : NULL;
    fd_rope_table(&node->rope, factors, 0, args->n_kv, in->tables, in->tables + n);
    for (int32_t p = 0; p < args->n_kv && moved; p++)
        fd_rope_table(&node->rope, factors, fd_hypothesis_position(&ev->h, p), 1, in->tables + p * half,
                      in->tables + n + p * half);
    args->rope_cos = in->tables;
    args->rope_sin = in->tables + n;
    return FD_OK;
}

/* A table of positions whose row p is the one that the hypothesis has for position p. */
fd_code fd_inputs_move_positions(const fd_evaluation *ev, fd_op_args *args, fd_op_inputs *in, fd_error *err) {
    const fd_weight *table = args->weight[0];
    const int64_t n = table->n_col;
    if (ev->h.guess != FD_GUESS_POSITION || !fd_hypothesis_may_concern(&ev->h, args->node)) return FD_OK;
    in->tables = malloc(sizeof *in->tables * (size_t)(args->n_kv * n));
    if (!in->tables) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory for %s", args->node->name);
    for (int32_t p = 0; p < args->n_kv; p++) {
        const int64_t moved = fd_hypothesis_position(&ev->h, p);
        const int64_t row = moved < 0 ? 0 : moved < table->n_row ? moved : table->n_row - 1;
        const uint64_t bytes = table->bytes / (uint64_t)table->n_row;
        fd_dequantize_row(table->dtype, (const char *)table->data + (uint64_t)row * bytes, in->tables + p * n, n);
    }
    in->moved = *table;
    in->moved.dtype = FD_F32;
    in->moved.data = in->tables;
    in->moved.n_row = args->n_kv;
    in->moved.bytes = sizeof *in->tables * (uint64_t)(args->n_kv * n);
    args->weight[0] = &in->moved;
    return FD_OK;
}

fd_code fd_inputs_change_tokens(const fd_evaluation *ev, fd_op_args *args, fd_op_inputs *in, fd_error *err) {
    int32_t n_vocab = (int32_t)args->weight[0]->n_row;
    if (ev->h.guess != FD_GUESS_TOKEN || !fd_hypothesis_may_concern(&ev->h, args->node)) return FD_OK;
    in->tokens = malloc(sizeof *in->tokens * (size_t)args->n_pos);
    if (!in->tokens) return fd_fail(err, FD_ERR_MEMORY, "explanation: out of memory");
    for (int32_t i = 0; i < args->n_pos; i++) {
        const int32_t from = i - ev->h.n;
        const fd_explain_request *r = ev->bench->request;
        const bool known = from >= -r->n_tokens_before && from < args->n_pos + r->n_tokens_after;
        const bool other = ev->h.which == FD_TOKEN_BEFORE && known;
        in->tokens[i] = other ? args->tokens[from] : args->tokens[i]; /* the first and the last stay */
        if (ev->h.which == FD_TOKEN_MODULO) in->tokens[i] %= ev->h.n;
        if (ev->h.which == FD_TOKEN_OFFSET) in->tokens[i] = (args->tokens[i] + ev->h.n + n_vocab) % n_vocab;
    }
    args->tokens = in->tokens;
    return FD_OK;
}
