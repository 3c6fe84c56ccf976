/* Mistakes of attention kernels: tiles and parts put together wrongly, one head's factor; and what passes from step to step: a
 * recurrent state, rows of the cache that are not written. */
#include <string.h>

#include "compare/explain/guesses.h"
#include "compare/explain/solve.h"
#include "faults/tiles.h"

/* Keys a tile (1: an online softmax, key by key), or below 0 so many parts: of each row's keys, or of the step's. */
#define ROUNDED_UP(parts) (-(parts)-FD_PARTS_ROUNDED_UP)
static const int32_t tiles[] = {
    -2, ROUNDED_UP(2), -4, ROUNDED_UP(4), -8, ROUNDED_UP(8), -3, ROUNDED_UP(3), 4, 8, 16, 32, 64, 128, 1, 2};
enum { N_TILE = sizeof tiles / sizeof *tiles };

static bool is_width(int32_t keys) {
    for (int i = 0; i < N_TILE; i++)
        if (tiles[i] == keys) return true;
    return false;
}

static fd_code try_parts_of_step(fd_trial *t, fd_hypothesis h, int32_t parts, fd_error *err) {
    const int32_t n_kv = t->all.request->args.n_kv;
    h.n = (n_kv + parts - 1) / parts;
    return h.n < 2 || h.n >= n_kv || is_width(h.n) ? FD_OK : fd_trial_try(t, &h, err);
}

/* Of fewer keys than two tiles have, the last tile that is not counted leaves the first one's sum, and so may half a tile: one does not
 * exclude the others. */
static bool may_be_twins(int rule) {
    return rule == FD_TILES_FIRST_SUM || rule == FD_TILES_LAST_UNCOUNTED;
}

static fd_code try_tiles(fd_trial *t, const fd_node *node, fd_error *err) {
    for (int rule = 0; rule < FD_TILE_RULE_COUNT; rule++)
        for (int i = 0; i < N_TILE && (!fd_trial_fits(t) || may_be_twins(rule)); i++) {
            fd_hypothesis h = {.guess = FD_GUESS_TILES, .node = node->id, .which = rule, .n = tiles[i]};
            bool parts = rule >= FD_TILES_AVERAGED;
            if (rule >= FD_TILES_OWN_TWICE && rule <= FD_TILES_OWN_UNMIXED && h.n != 1) continue;
            if (h.n >= t->all.request->args.n_kv || (parts ? h.n == 1 : h.n < 0)) continue;
            FD_TRY(fd_trial_try(t, &h, err));
            if (h.n < 0 && h.n > -FD_PARTS_ROUNDED_UP && !fd_trial_fits(t)) FD_TRY(try_parts_of_step(t, h, -h.n, err));
        }
    return FD_OK;
}

/* Of what is a head's own. */
static fd_code try_heads(fd_trial *t, const fd_node *node, fd_error *err) {
    int32_t n_head = node->n_dim == 2 || node->over_kv ? node->shape[0] : 1;
    for (int32_t i = 0; i < n_head && n_head > 1 && !fd_trial_fits(t); i++) {
        int32_t each = node->over_kv ? 1 : node->shape[1];
        fd_hypothesis h = {
            .guess = FD_GUESS_FACTOR, .node = node->id, .first = i * each, .end = (i + 1) * each, .value = 1};
        FD_TRY(fd_solve_near(t, h, err));
    }
    return FD_OK;
}

/* At each recurrent op of the span alone, then at all of them: convolution and scan each keep a state. */
static fd_code try_state(fd_trial *t, fd_state_rule rule, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    fd_hypothesis h = {.guess = FD_GUESS_STATE, .which = (int32_t)rule};
    int32_t n = 0;
    if (r->args.pos0 + r->n_unjudged == 0) return FD_OK;
    for (int32_t i = 0; i < t->n_span && !fd_trial_fits(t); i++) {
        h.node = t->span[i];
        if (!fd_hypothesis_may_concern(&h, &r->args.graph->nodes[h.node])) continue;
        n++;
        FD_TRY(fd_trial_try(t, &h, err));
    }
    h.node = -1;
    h.layer = FD_ANY_LAYER;
    return n < 2 || fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

/* A tile that is cut short leaves out the same values where decode begins with a tile: no rows tell these two apart. */
static fd_code try_tiles_left_out(fd_trial *t, int32_t node, fd_error *err) {
    for (int32_t tile = 2; tile <= 64; tile *= 2) {
        fd_hypothesis h = {.guess = FD_GUESS_INPUT_TAIL, .node = node, .n = tile};
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

static fd_code try_unwritten(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    fd_hypothesis h = {.guess = FD_GUESS_UNWRITTEN, .n = r->args.pos0 + r->n_unjudged};
    int32_t n = 0;
    for (int32_t i = 0; i < t->n_span && h.n > 0 && !fd_trial_fits(t); i++) {
        const fd_node *node = &r->args.graph->nodes[t->span[i]];
        h.node = node->id;
        if (!fd_hypothesis_may_concern(&h, node)) continue;
        n++;
        FD_TRY(fd_trial_try(t, &h, err));
        if (fd_trial_fits(t) && node->op == FD_OP_ATTN_MIX) FD_TRY(try_tiles_left_out(t, node->id, err));
    }
    h.node = -1;
    h.layer = FD_ANY_LAYER;
    return n < 2 || fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

/* What reads a chunk's rows before they are written looks in that step as if the chunk did not write them; later steps, which read
 * them, tell. */
fd_code fd_guess_unwritten_chunk(fd_trial *t, fd_error *err) {
    const fd_explain_request *r = t->all.request;
    static const struct {
        const char *fault;
        fd_op reader;
    } late[] = {{"kv_stale_row", FD_OP_ATTN_SCORES}, {"kv_stale_v", FD_OP_ATTN_MIX}};
    fd_hypothesis h = {.guess = FD_GUESS_UNWRITTEN,
                       .node = -1,
                       .layer = FD_ANY_LAYER,
                       .n = r->args.pos0 + r->n_unjudged,
                       .end = r->args.pos0 + r->args.n_pos};
    for (int i = 0; i < 2 && h.n > 0 && !r->args.row_by_row; i++) {
        bool fits = false;
        for (int32_t k = 0; k < t->n && !fits; k++)
            fits = fd_trial_is_fit(t, &t->contenders[k].fit) && strcmp(t->contenders[k].fit.name, late[i].fault) == 0;
        h.ops = (int32_t)late[i].reader + 1;
        if (fits) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

fd_code fd_guess_steps(fd_trial *t, fd_error *err) {
    for (int rule = 0; rule <= FD_STATE_LATE && !fd_trial_fits(t); rule++)
        FD_TRY(try_state(t, (fd_state_rule)rule, err));
    return fd_trial_fits(t) ? FD_OK : try_unwritten(t, err);
}

/* Keys of little weight are left out. */
static fd_code try_floor(fd_trial *t, const fd_node *softmax, fd_error *err) {
    static const double floors[] = {1e-6, 1e-5, 1e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.03, 0.05, 0.1};
    fd_hypothesis h = {.guess = FD_GUESS_CLAMP, .node = softmax->id, .which = 2};
    for (size_t i = 0; i < sizeof floors / sizeof *floors && !fd_trial_fits(t); i++) {
        h.value = floors[i];
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Exponents are clamped from below: at a whole number, or where binary16 ends, ln 2¹⁵ and ln 65504. */
static fd_code try_least_exponent(fd_trial *t, const fd_node *softmax, fd_error *err) {
    static const double least[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 20, 24, 10.3972077, 11.0898662};
    fd_hypothesis h = {.guess = FD_GUESS_CLAMP, .node = softmax->id, .which = 3};
    for (size_t i = 0; i < sizeof least / sizeof *least && !fd_trial_fits(t); i++) {
        h.value = least[i];
        FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Scores were recorded before their softcap, which is softmax's then. Of scores that were not it is a parameter. */
static fd_code try_cap(fd_trial *t, const fd_node *softmax, fd_error *err) {
    const fd_hypothesis h = {.guess = FD_GUESS_CAP, .node = softmax->id, .which = 1};
    return t->span[0] == softmax->id && !fd_trial_fits(t) ? fd_solve_limit(t, h, err) : FD_OK;
}

/* Of more K/V heads the neighbours' alone. */
enum { MOST_CACHE_HEADS = 8 };

/* A group of query heads reads another one's K, V or both: as if these stood at another head. */
static fd_code try_heads_of_cache(fd_trial *t, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    int32_t caches[2], n = 0;
    for (int32_t i = 0; i < t->n_span; i++) {
        const fd_node *node = &graph->nodes[t->span[i]];
        if (fd_node_is_kv_cache(node) && node->n_dim == 2 && n < 2) caches[n++] = node->id;
    }
    for (int32_t k = n == 2 ? -1 : 0; k < n; k++) {
        const int32_t n_head = graph->nodes[caches[k < 0 ? 0 : k]].shape[0];
        for (int32_t by = 1; by < n_head && !fd_trial_fits(t); by++) {
            fd_hypothesis h = {
                .guess = FD_GUESS_ORDER, .layer = FD_ANY_LAYER, .which = FD_ORDER_HEADS_ROTATED, .n = by};
            h.node = k < 0 ? -1 : caches[k];
            if (k < 0) h.ops = FD_OP_KV_WRITE + 1;
            if (by == 1 || by == n_head - 1 || n_head <= MOST_CACHE_HEADS) FD_TRY(fd_trial_try(t, &h, err));
        }
    }
    return FD_OK;
}

/* Views that were permuted, read as if they were contiguous: what RoPE turns, Q, or the caches. */
static fd_code try_strides(fd_trial *t, const fd_node *node, fd_error *err) {
    const fd_op_args *args = &t->all.request->args;
    const fd_node *nodes = args->graph->nodes;
    const int n_slot = node->op == FD_OP_ROPE ? 1 : 2;
    for (int slot = node->op == FD_OP_ATTN_MIX ? 1 : 0; slot < n_slot; slot++) {
        const fd_node *read = &nodes[node->input[slot]];
        for (int rule = 0; rule <= FD_STRIDES_FIRST_ROW && !fd_trial_fits(t) && read->n_dim == 2; rule++) {
            fd_hypothesis h = {.guess = FD_GUESS_STRIDES, .node = node->id, .which = slot, .other = rule};
            h.n = read->shape[0];
            h.first = slot == 0 ? args->pos0 - args->batch_offset : 0;
            if (slot == 0 || rule != FD_STRIDES_FIRST_ROW) FD_TRY(fd_trial_try(t, &h, err));
        }
    }
    return FD_OK;
}

/* The same of all that attention reads, or of what it reads of the cache. `mix`: what reads V. */
static fd_code try_all_strides(fd_trial *t, const fd_node *mix, fd_error *err) {
    const fd_op_args *args = &t->all.request->args;
    const fd_node *values = &args->graph->nodes[mix->input[1]];
    for (int which = -1; which >= -2 && values->n_dim == 2; which--)
        for (int rule = 0; rule < FD_STRIDES_FIRST_ROW && !fd_trial_fits(t); rule++) {
            fd_hypothesis h = {.guess = FD_GUESS_STRIDES, .node = -1, .layer = FD_ANY_LAYER};
            h.which = which;
            h.other = rule;
            h.n = mix->shape[0];
            h.end = values->shape[0];
            h.first = args->pos0 - args->batch_offset;
            FD_TRY(fd_trial_try(t, &h, err));
        }
    return FD_OK;
}

fd_code fd_guess_attention(fd_trial *t, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    if (t->n_span > 1) FD_TRY(try_heads_of_cache(t, err));
    for (int32_t i = t->n_span - 1; i >= 0; i--) {
        const fd_node *node = &graph->nodes[t->span[i]];
        bool mix = node->op == FD_OP_ATTN_MIX, scores = node->op == FD_OP_ATTN_SCORES;
        if (mix || (node->op == FD_OP_ATTN_SOFTMAX && i == t->n_span - 1)) FD_TRY(try_tiles(t, node, err));
        if (node->op == FD_OP_ATTN_SOFTMAX) FD_TRY(try_floor(t, node, err));
        if (node->op == FD_OP_ATTN_SOFTMAX) FD_TRY(try_least_exponent(t, node, err));
        if (node->op == FD_OP_ATTN_SOFTMAX) FD_TRY(try_cap(t, node, err));
        const bool turns = node->op == FD_OP_ROPE && i < t->n_span - 1; /* its own: fd_guess_regions */
        if (mix || scores || turns) FD_TRY(try_strides(t, node, err));
        if (mix && t->n_span > 1) FD_TRY(try_all_strides(t, node, err));
        if ((mix || scores) && i < t->n_span - 1) FD_TRY(try_heads(t, node, err)); /* its own: factor_of_region */
    }
    return FD_OK;
}
