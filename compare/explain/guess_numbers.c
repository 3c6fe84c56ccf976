#include <math.h>
#include <string.h>

#include "compare/explain/guesses.h"
#include "compare/explain/solve.h"
#include "compare/hypothesis/parameters.h"

typedef fd_code (*try_fn)(fd_trial *t, fd_hypothesis h, const fd_node *node, fd_error *err);

/* Through layers that have several kinds of them: at all of one kind, the norms before attention. */
static fd_code for_kinds_of(fd_trial *t, fd_op op, fd_hypothesis h, try_fn try_, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    int32_t n_kind = 0, first = FD_ANY_LAYER;
    for (int pass = 0; pass < 2; pass++)
        for (int32_t i = 0; i < t->n_span && !fd_trial_fits(t); i++) {
            const fd_node *node = &graph->nodes[t->span[i]];
            if (node->op != op || node->layer < 0) continue;
            if (first == FD_ANY_LAYER) first = node->layer;
            n_kind += pass == 0 && node->layer == first;
            if (pass == 0 || n_kind < 2 || node->layer != first) continue;
            h.node = node->id;
            fd_hypothesis every = fd_hypothesis_everywhere(&h, graph);
            FD_TRY(try_(t, every, node, err));
        }
    return FD_OK;
}

/* At all nodes of that op together and, where there are several, at each alone. `node`: the last of them. */
static fd_code for_nodes_of(fd_trial *t, fd_op op, fd_hypothesis h, try_fn try_, bool parts, fd_error *err) {
    const fd_node *nodes = t->all.request->args.graph->nodes;
    int32_t n = 0, last = -1;
    for (int32_t i = 0; i < t->n_span; i++)
        if (nodes[t->span[i]].op == op) n++, last = t->span[i];
    if (n == 0 || fd_trial_fits(t)) return FD_OK;
    h.node = n > 1 ? -1 : last;
    h.layer = FD_ANY_LAYER;
    FD_TRY(try_(t, h, &nodes[last], err));
    for (h.n_dim = 1; h.n_dim <= 2 && !fd_trial_fits(t); h.n_dim++) {
        const fd_node *norm = fd_trial_norm_of_both(t, h.n_dim);
        if (norm && norm->op == op) FD_TRY(try_(t, h, norm, err));
    }
    h.n_dim = 0;
    if (fd_trial_many_layers(t) && !parts) FD_TRY(for_kinds_of(t, op, h, try_, err));
    for (int32_t i = 0, done = -1; parts && i < t->n_span && n > 1 && !fd_trial_fits(t); i++) {
        const fd_node *one = &nodes[t->span[i]];
        bool by_layer = fd_trial_many_layers(t);
        if (one->op != op || (by_layer && one->layer == done)) continue;
        h.node = by_layer ? -1 : one->id;
        h.layer = by_layer ? one->layer : FD_ANY_LAYER;
        done = one->layer;
        FD_TRY(try_(t, h, one, err));
    }
    return FD_OK;
}

/* ---- parameters ---- */

static fd_code try_value(fd_trial *t, fd_hypothesis h, double value, fd_error *err) {
    h.value = value;
    return fd_trial_fits(t) ? FD_OK : fd_trial_try(t, &h, err);
}

static fd_code try_dims(fd_trial *t, fd_hypothesis h, int32_t n, double right, fd_error *err) {
    for (h.n = 0; h.n < 2; h.n++)
        if (n % 2 == 0 && n != (int32_t)right) FD_TRY(try_value(t, h, n, err));
    return FD_OK;
}

static fd_code try_whole(fd_trial *t, fd_hypothesis h, const fd_node *node, fd_error *err) {
    const fd_parameter *p = &fd_parameters[h.which];
    double right = fd_parameter_of(p, node);
    if (node->op == FD_OP_ROPE) { /* halves first, then what few models have */
        const int32_t dim = node->shape[1], step = dim >= 64 ? dim / 32 * 2 : 2;
        for (int32_t n = dim; n >= 2; n = n % 2 == 0 ? n / 2 : 0) FD_TRY(try_dims(t, h, n, right, err));
        for (int32_t n = step; n < dim && fd_trial_rounds_little(&t->all); n += step)
            FD_TRY(try_dims(t, h, n, right, err));
        return FD_OK;
    }
    bool offset = node->op == FD_OP_KV_WRITE;
    /* beyond the last row that is asked about they are nowhere: not written, which is another explanation */
    int32_t n_row = t->all.request->args.n_pos - t->all.request->n_unjudged, furthest = n_row > 4 ? 4 : n_row - 1;
    int32_t low = offset ? -4 : 1, high = offset ? furthest : t->all.request->args.n_kv;
    for (int32_t n = low; n <= high; n++) FD_TRY(try_value(t, h, n, err));
    return offset ? FD_OK : try_value(t, h, 0, err);
}

static fd_code try_parameter(fd_trial *t, fd_hypothesis h, const fd_node *node, fd_error *err) {
    const fd_parameter *p = &fd_parameters[h.which];
    const bool base_of_scaled = p->at == offsetof(fd_node, rope.base) && /* perhaps nothing of the file reaches RoPE */
                                (node->rope.scaling != FD_ROPE_SCALING_NONE || node->weight[0] >= 0);
    bool found;
    if (p->whole_only) return try_whole(t, h, node, err);
    h.value = 0; /* a field that nobody filled in; other numbers' zeros have rows in the table */
    if (p->op == FD_OP_SWIGLU_CLAMP) FD_TRY(fd_trial_try(t, &h, err));
    for (; h.other <= base_of_scaled && !fd_trial_fits(t); h.other++)
        FD_TRY(fd_solve(t, h, fd_parameter_of(p, node), &found, err));
    return FD_OK;
}

/* ---- positions ---- */

enum { MOST_OFFSET = 64 };

static fd_code try_positions(fd_trial *t, fd_hypothesis h, const fd_node *node, fd_error *err) {
    int32_t n_kv = t->all.request->args.n_kv, first = n_kv - t->all.request->args.n_pos + t->all.request->n_context;
    const fd_op_args *args = &t->all.request->args;
    int32_t prompt = args->first_batch, most_rows = args->row_by_row ? 0 : FD_MOST_ROWS_OF_TILE;
    const bool in_table = node->op == FD_OP_ADD_POSITION, far = t->n_span == 1 || in_table; /* a length, added again */
    int32_t n_step = far && n_kv < MOST_OFFSET ? n_kv : 8, in_row_0 = 1 - args->pos0 - args->n_pos; /* all rows */
    const int32_t rolled = prompt > 1 && !args->row_by_row ? prompt : 0;
    const struct {
        fd_position_rule rule;
        int32_t low, high, by;
    } rules[] = {{FD_POSITION_OFFSET, -8, 8, 0},           {FD_POSITION_OFFSET, -first, -first, 0},
                 {FD_POSITION_OFFSET, first, first, 0},    {FD_POSITION_OFFSET, prompt, prompt, 0},
                 {FD_POSITION_OFFSET, -n_step, n_step, 0}, {FD_POSITION_IS, 0, 2, 0},
                 {FD_POSITION_CLAMPED, -2, -1, 0},         {FD_POSITION_MODULO, 2, n_kv - 1, 0},
                 {FD_POSITION_DIVIDED, 2, 4, 0},           {FD_POSITION_AT_MOST, 1, n_kv - 2, 0},
                 {FD_POSITION_ROUNDED, 8, 8, 0},           {FD_POSITION_ROUNDED, 11, 11, 0},
                 {FD_POSITION_OF_TILE, 2, most_rows, 0},   {FD_POSITION_REVERSED, prompt, rolled, 0},
                 {FD_POSITION_ROLLED, prompt, rolled, 1},  {FD_POSITION_ROLLED, prompt, rolled, -1}};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (int32_t n = rules[i].low; n <= rules[i].high && !fd_trial_fits(t); n++) {
            h.which = (int32_t)rules[i].rule;
            h.n = n;
            h.end = rules[i].rule == FD_POSITION_OF_TILE ? args->pos0 - args->batch_offset : 0;
            h.first = rules[i].rule >= FD_POSITION_REVERSED ? t->all.request->n_prompt : 0;
            h.other = rules[i].by;
            if (rules[i].rule == FD_POSITION_OFFSET && (n == 0 || (in_table && n <= in_row_0))) continue;
            FD_TRY(fd_trial_try(t, &h, err));
        }
    h.other = 0;
    return fd_trial_fits(t) ? FD_OK : fd_guess_restarts(t, h, err);
}

static fd_code try_tokens(fd_trial *t, fd_hypothesis h, const fd_node *node, fd_error *err) {
    (void)node;
    for (h.n = -2; h.n <= 2 && !fd_trial_fits(t); h.n++)
        if (h.n) FD_TRY(fd_trial_try(t, &h, err));
    h.which = FD_TOKEN_MODULO; /* an id in a type that is too short */
    for (h.n = 1 << 7; h.n <= 1 << 16 && !fd_trial_fits(t); h.n *= 2) FD_TRY(fd_trial_try(t, &h, err));
    h.which = FD_TOKEN_BEFORE; /* a step that is fed those of an earlier one; within a step other rows say it */
    const fd_explain_request *r = t->all.request;
    const int32_t n_before = r->n_tokens_before + (r->args.pos0 > 0 ? r->n_unjudged : 0);
    for (h.n = 1; h.n <= n_before && !fd_trial_fits(t); h.n++) FD_TRY(fd_trial_try(t, &h, err));
    h.n = -1; /* labels for inputs */
    return r->n_tokens_after > 0 && !fd_trial_fits(t) ? fd_trial_try(t, &h, err) : FD_OK;
}

/* Of several that are near the rows none is the name; and what else gives them may be simpler. */
static void drop_scalings(fd_trial *t) {
    int32_t n = 0;
    for (int32_t i = 0; i < t->n; i++) n += t->contenders[i].h.guess == FD_GUESS_SCALING;
    for (int32_t i = 0; i < t->n && n > 1;) {
        if (t->contenders[i].h.guess == FD_GUESS_SCALING)
            fd_trial_drop(t, i);
        else
            i++;
    }
}

/* Every frequency by the one factor, where the file scales them otherwise. */
static fd_code try_linear(fd_trial *t, fd_hypothesis h, const fd_node *node, fd_error *err) {
    const double factors[] = {node->rope.factor, 2, 4, 8, 16, 32, 40, 64};
    const bool scaled = node->weight[0] >= 0 || node->rope.scaling > FD_ROPE_SCALING_LINEAR;
    h.which = FD_ROPE_SCALING_LINEAR;
    for (size_t i = 0; i < sizeof factors / sizeof *factors && scaled && !fd_trial_fits(t); i++) {
        h.value = factors[i];
        if (h.value > 1) FD_TRY(fd_trial_try(t, &h, err));
    }
    return FD_OK;
}

/* Scalings for longer contexts that published models have, all of them: rows must tell them apart. */
static fd_code try_scalings(fd_trial *t, fd_hypothesis h, const fd_node *node, fd_error *err) {
    static const fd_rope_scaling kinds[] = {FD_ROPE_SCALING_LLAMA3, FD_ROPE_SCALING_YARN, FD_ROPE_SCALING_YARN};
    static const double factors[] = {8, 32, 4, 16, 2, 40, 64};
    const int32_t own = t->all.request->args.graph->hparams.n_ctx_train;
    const int32_t contexts[] = {8192, 4096, 32768, 2048, 16384, own, own / 2, own / 4, own / 8};
    FD_TRY(try_linear(t, h, node, err));
    for (int kind = 0; kind < 3 && !fd_trial_fits(t); kind++)
        for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
            for (size_t k = 0; k < sizeof contexts / sizeof *contexts; k++) {
                bool known = contexts[k] < 1;
                for (size_t earlier = 0; earlier < k; earlier++) known |= contexts[earlier] == contexts[k];
                h.which = (int32_t)kinds[kind];
                h.other = kind == 2;
                h.value = factors[i];
                h.n = contexts[k];
                if (!known) FD_TRY(fd_trial_try(t, &h, err));
            }
    drop_scalings(t);
    return FD_OK;
}

fd_code fd_guess_numbers(fd_trial *t, bool parts, fd_error *err) {
    fd_hypothesis h = {.guess = FD_GUESS_PARAMETER};
    for (; h.which < fd_n_parameter; h.which++)
        FD_TRY(for_nodes_of(t, fd_parameters[h.which].op, h, try_parameter, parts, err));
    FD_TRY(for_nodes_of(t, FD_OP_ROPE, (fd_hypothesis){.guess = FD_GUESS_POSITION}, try_positions, parts, err));
    const fd_hypothesis table = {.guess = FD_GUESS_POSITION, .ops = FD_OP_ADD_POSITION + 1};
    FD_TRY(for_nodes_of(t, FD_OP_ADD_POSITION, table, try_positions, parts, err));
    for (int i = 0; i < 2; i++) { /* of scores where these are recorded */
        const fd_op op = i ? FD_OP_ATTN_SCORES : FD_OP_ATTN_SOFTMAX;
        FD_TRY(
            for_nodes_of(t, op, (fd_hypothesis){.guess = FD_GUESS_KEYS, .ops = op + 1}, fd_guess_keys_at, parts, err));
    }
    const fd_hypothesis slots = {.guess = FD_GUESS_SLOTS, .ops = FD_OP_ATTN_SOFTMAX + 1};
    FD_TRY(for_nodes_of(t, FD_OP_ATTN_SOFTMAX, slots, fd_guess_slots_at, parts, err));
    if (!fd_trial_many_layers(t) && !t->heads && !t->n_rank) /* no head and no rank has its own */
        FD_TRY(for_nodes_of(t, FD_OP_ROPE, (fd_hypothesis){.guess = FD_GUESS_SCALING}, try_scalings, false, err));
    return for_nodes_of(t, FD_OP_EMBED, (fd_hypothesis){.guess = FD_GUESS_TOKEN}, try_tokens, parts, err);
}

/* ---- scores ---- */

static int32_t parameter_named(const char *name) {
    int32_t i = 0;
    while (i < fd_n_parameter && strcmp(fd_parameters[i].name, name) != 0) i++;
    return i;
}

/* What the hypothesis multiplies all scores by, through Q or K alone; 1: it does something else. */
static double factor_of_scores(const fd_graph *graph, const fd_hypothesis *h) {
    static const char *const of[] = {"attn_q", "attn_k", "attn_q_rope", "attn_k_rope", "cache_k"};
    const fd_node *node = h->node >= 0 ? &graph->nodes[h->node] : NULL;
    const char *kind = node ? fd_fault_suffix(node) : h->kind;
    const bool magnitude =
        h->guess == FD_GUESS_PARAMETER && strcmp(fd_parameters[h->which].name, "other_rope_magnitude") == 0;
    const bool whole = h->guess == FD_GUESS_FACTOR && h->first == 0 && h->n == 0 && !h->heads && !h->n_rank;
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        if (strcmp(kind, of[i]) == 0 && (magnitude || whole)) return h->value;
    return 1;
}

/* Twice the Q, or the K, is twice the scores, and of these an engine has a factor. */
fd_code fd_guess_scale_of_scores(fd_trial *t, fd_error *err) {
    const fd_graph *graph = t->all.request->args.graph;
    const fd_hypothesis *best = t->n > 0 ? &t->contenders[0].h : NULL;
    const double factor = best && fd_trial_fits(t) ? factor_of_scores(graph, best) : 1;
    fd_hypothesis h = {.guess = FD_GUESS_PARAMETER, .which = parameter_named("other_attn_scale"), .node = -1};
    if (!(fabs(factor - 1) > 0) || h.which == fd_n_parameter) return FD_OK;
    h.layer = best->node >= 0 ? graph->nodes[best->node].layer : best->layer;
    for (int32_t i = 0; i < t->n_span; i++) {
        const fd_node *node = &graph->nodes[t->span[i]];
        if (node->op != FD_OP_ATTN_SCORES || (h.layer != FD_ANY_LAYER && node->layer != h.layer)) continue;
        h.value = (double)(float)(factor * (double)node->scale);
        return fd_trial_try(t, &h, err);
    }
    return FD_OK;
}
