/* What an engine will take of the device's memory, worked out before any is taken. Pure host code. */
#include "engine/budget.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/fast.h"
#include "engine/internal.h"

enum {
    BATCH_ROWS = 512,         /* rows of a long prompt that run together: weights are read once for all of them */
    SCORES_BYTES = 256 << 20, /* and no more than keep a row of scores for each within this */
};

static int64_t width_of(const fd_node *node) {
    return fd_node_row_stride(node, 0);
}

int32_t fd_table_owner(const fd_graph *graph, int32_t id) {
    for (int32_t i = 0; i < id; i++)
        if (graph->nodes[i].op == FD_OP_ROPE && fd_rope_same_table(&graph->nodes[i], &graph->nodes[id])) return i;
    return id;
}

size_t fd_cache_bytes(const fd_node *node, int32_t n_ctx, bool fast) {
    return fd_align((fast ? sizeof(uint16_t) : sizeof(float)) * (size_t)n_ctx * (size_t)width_of(node));
}

size_t fd_table_bytes(const fd_node *node, int32_t n_ctx) {
    return fd_align(sizeof(float) * (size_t)n_ctx * (size_t)(node->rope.n_rot / 2));
}

size_t fd_inputs_bytes(int32_t n_ctx) {
    return fd_align(sizeof(int32_t) * (size_t)(FD_INPUT_TOKENS + n_ctx));
}

size_t fd_batch_inputs_bytes(int32_t n_seq) {
    return fd_align(sizeof(int32_t) * (size_t)(FD_INPUT_TOKENS + 3 * n_seq));
}

size_t fd_sampling_state_bytes(int32_t n_seq) {
    return fd_align(sizeof(fd_sample_state) * (size_t)n_seq);
}

size_t fd_history_bytes(int32_t n_ctx, int32_t n_seq) {
    return fd_align(sizeof(int32_t) * ((size_t)n_ctx + 1) * (size_t)n_seq);
}

size_t fd_scratch_bytes(const fd_graph *graph, int32_t n_ctx) {
    size_t most = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_ATTN_MIX) continue;
        size_t bytes =
            fd_attn_decode_scratch(node->shape[0], graph->nodes[node->input[1]].shape[0], node->shape[1], n_ctx);
        if (bytes > most) most = bytes;
    }
    return fd_align(most);
}

static uint64_t all_cache_bytes(const fd_graph *graph, int32_t n_ctx, int32_t n_seq, bool fast) {
    uint64_t bytes = 0;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_KV_WRITE) bytes += fd_cache_bytes(&graph->nodes[i], n_ctx, fast) * (uint64_t)n_seq;
    return bytes;
}

uint64_t fd_engine_fixed_bytes(const fd_graph *graph, int32_t n_ctx, int32_t n_seq, bool fast) {
    uint64_t bytes = all_cache_bytes(graph, n_ctx, n_seq, fast) + fd_inputs_bytes(n_ctx) + fd_batch_inputs_bytes(n_seq) +
                     (fast ? 0 : fd_scratch_bytes(graph, n_ctx) * (uint64_t)n_seq) + fd_sampling_state_bytes(n_seq) +
                     fd_history_bytes(n_ctx, n_seq);
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ROPE && fd_table_owner(graph, i) == i)
            bytes += 2 * fd_table_bytes(&graph->nodes[i], n_ctx);
    return bytes;
}

int32_t fd_engine_batch_rows(const fd_graph *graph, int32_t n_ctx) {
    int64_t rows = BATCH_ROWS;
    for (int32_t i = 0; i < graph->n_node; i++) {
        if (!graph->nodes[i].over_kv) continue;
        int64_t fit = SCORES_BYTES / (fd_node_row_stride(&graph->nodes[i], n_ctx) * (int64_t)sizeof(float));
        if (fit < rows) rows = fit;
    }
    if (rows < 16) rows = 16;
    return rows < n_ctx ? (int32_t)rows : n_ctx;
}

int32_t fd_step_rows(int32_t n_seq) {
    return n_seq < FD_MATVEC_TOKENS ? n_seq : FD_MATVEC_TOKENS;
}

/* What a pass's slots take. */
static uint64_t slots_bytes(const fd_engine *e, const fd_run *run) {
    uint64_t bytes = 0;
    for (int32_t s = 0; s < run->plan->n_slot; s++) bytes += fd_align(fd_run_slot_bytes(e, run, s));
    return bytes;
}

/* An engine as far as sizes need one: plans, and no memory. */
static fd_code probe_open(fd_engine *probe, const fd_graph *graph, fd_error *err) {
    *probe = (fd_engine){.exec = {.graph = graph}};
    probe->feeds_cache = calloc((size_t)graph->n_node, sizeof *probe->feeds_cache);
    if (!probe->feeds_cache) return fd_fail(err, FD_ERR_MEMORY, "engine: out of memory for %d nodes", graph->n_node);
    fd_mark_cache_feeders(graph, probe->feeds_cache);
    FD_TRY(fd_plan_make_rows(graph, &probe->rows, err));
    FD_TRY(fd_plan_make(graph, true, &probe->step, err));
    return fd_plan_make_batch(graph, &probe->batch, err);
}

static void probe_close(fd_engine *probe) {
    fd_plan_free(&probe->rows);
    fd_plan_free(&probe->step);
    fd_plan_free(&probe->batch);
    free(probe->feeds_cache);
}

size_t fd_q8_scratch_bytes(const fd_graph *graph, int32_t n_tok) {
    size_t most = 0;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->op != FD_OP_MATMUL || !fd_q8_can(graph->weights[node->weight[0]].dtype)) continue;
        size_t bytes = fd_q8_rows_bytes(graph->weights[node->weight[0]].n_col, n_tok);
        if (bytes > most) most = bytes;
    }
    return most;
}

static fd_engine_memory measure(const fd_engine *probe, uint64_t weights, const fd_engine_size *size) {
    const fd_graph *graph = probe->exec.graph;
    int32_t n_ctx = size->n_ctx, n_seq = size->n_seq > 1 ? size->n_seq : 1;
    bool fast = size->numerics == FD_NUMERICS_FAST, q8act = size->numerics == FD_NUMERICS_Q8ACT;
    fd_engine_memory m = {.weights = weights, .cache = all_cache_bytes(graph, n_ctx, n_seq, fast)};
    uint64_t fixed = fd_engine_fixed_bytes(graph, n_ctx, n_seq, fast) - m.cache;
    if (fast) {
        m.scratch = fixed + fd_fast_bytes(graph, n_ctx, n_seq, size->n_sm);
        return m;
    }
    if (n_seq == 1) m.observed = fd_kept_bytes(graph, n_ctx);
    fd_run prompt = {
        .plan = &probe->rows, .n_tok = fd_engine_batch_rows(graph, n_ctx), .n_kv = n_ctx, .tail = FD_ROWS_LAST};
    fd_run step = {.plan = &probe->step, .n_tok = fd_step_rows(n_seq), .n_kv = n_ctx, .tail = FD_ROWS_ALL};
    fd_run batch = {.plan = &probe->batch, .n_tok = n_seq, .n_kv = n_ctx, .tail = FD_ROWS_ALL};
    m.scratch = fixed + slots_bytes(probe, &prompt) + slots_bytes(probe, &step);
    if (q8act && prompt.n_tok > 1) m.scratch += fd_align(fd_q8_scratch_bytes(graph, prompt.n_tok));
    if (n_seq > 1 && fd_plan_batches(graph, &probe->batch)) {
        m.scratch += slots_bytes(probe, &batch);
        if (q8act) m.scratch += fd_align(fd_q8_scratch_bytes(graph, n_seq));
    }
    return m;
}

fd_code fd_engine_memory_needed(const fd_graph *graph, const fd_engine_size *size, fd_engine_memory *out,
                                fd_error *err) {
    uint64_t weights;
    fd_engine probe;
    *out = (fd_engine_memory){0};
    FD_TRY(fd_weights_bytes(graph, &weights, err));
    fd_code code = probe_open(&probe, graph, err);
    if (code == FD_OK) *out = measure(&probe, weights, size);
    probe_close(&probe);
    return code;
}

uint64_t fd_engine_memory_total(const fd_engine_memory *memory) {
    return memory->weights + memory->cache + memory->scratch;
}

typedef struct amount {
    char text[24];
} amount;

static amount amount_of(uint64_t bytes) {
    amount a;
    if (bytes < 1u << 30)
        snprintf(a.text, sizeof a.text, "%.1f MiB", (double)bytes / 0x1p20);
    else
        snprintf(a.text, sizeof a.text, "%.2f GiB", (double)bytes / 0x1p30);
    return a;
}

void fd_engine_memory_text(const fd_engine_memory *m, const fd_engine_size *size, uint64_t free_bytes, char *to,
                           size_t room) {
    char sequences[32] = "", observed[64] = "";
    if (size->n_seq > 1) snprintf(sequences, sizeof sequences, "%d times ", size->n_seq);
    if (m->observed > 0)
        snprintf(observed, sizeof observed, ", %s more for observed decode steps", amount_of(m->observed).text);
    snprintf(to, room, "%s needed (weights %s, K/V cache of %s%d positions %s, scratch %s)%s, %s free",
             amount_of(fd_engine_memory_total(m)).text, amount_of(m->weights).text, sequences, size->n_ctx,
             amount_of(m->cache).text, amount_of(m->scratch).text, observed, amount_of(free_bytes).text);
}

/* The longest context below size->n_ctx that fits, 0 for none. Shorter ones take no more, but for the rows of a prompt
 * that run together, which change in whole rows; what is returned fits in any case. */
static int32_t context_that_fits(const fd_engine *probe, uint64_t weights, const fd_engine_size *size,
                                 uint64_t free_bytes) {
    int32_t fits = 0, too_long = size->n_ctx;
    while (too_long - fits > 1) {
        fd_engine_size middle = *size;
        middle.n_ctx = fits + (too_long - fits) / 2;
        fd_engine_memory m = measure(probe, weights, &middle);
        if (fd_engine_memory_total(&m) <= free_bytes)
            fits = middle.n_ctx;
        else
            too_long = middle.n_ctx;
    }
    return fits;
}

fd_code fd_engine_memory_fits(const fd_graph *graph, const fd_engine_size *size, uint64_t free_bytes, fd_error *err) {
    fd_engine_memory m;
    FD_TRY(fd_engine_memory_needed(graph, size, &m, err));
    if (fd_engine_memory_total(&m) <= free_bytes) return FD_OK;
    char text[256], advice[96];
    fd_engine probe;
    fd_code code = probe_open(&probe, graph, err);
    int32_t fits = code == FD_OK ? context_that_fits(&probe, m.weights, size, free_bytes) : 0;
    probe_close(&probe);
    FD_TRY(code);
    if (fits > 0)
        snprintf(advice, sizeof advice, "a context of %d positions would fit", fits);
    else
        snprintf(advice, sizeof advice, "%s", m.weights > free_bytes ? "the weights alone do not fit" : "no context fits");
    m.observed = 0; /* a refusal is about what an engine must have */
    fd_engine_memory_text(&m, size, free_bytes, text, sizeof text);
    return fd_fail(err, FD_ERR_MEMORY, "device memory: %s; %s", text, advice);
}
