/* What an engine will take of the device's memory, worked out before any is taken. Pure host code. */
#include "engine/budget.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/edges.h"
#include "engine/internal.h"
#include "kernels/attention/attention.h"
#include "kernels/int8/q8.h"
#include "kernels/matmul/few_f16.h"
#include "kernels/matmul/matmul.h"

enum {
    BATCH_ROWS = 512,         /* rows of a long prompt that run together: weights are read once for all of them */
    SCORES_BYTES = 256 << 20, /* and no more than keep a row of scores for each within this, or the K/V cache's size */
    ROWS_AT_ONCE = 64,        /* kernels of many rows take so many together */
};

int32_t fd_engine_batch_rows(const fd_graph *graph, int32_t n_ctx) {
    int64_t rows = BATCH_ROWS, room = 0;
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_KV_WRITE) room += (int64_t)fd_cache_bytes(&graph->nodes[i], n_ctx, false);
    if (room < SCORES_BYTES) room = SCORES_BYTES;
    for (int32_t i = 0; i < graph->n_node; i++) {
        if (!graph->nodes[i].over_kv) continue;
        int64_t fit = room / (fd_node_row_stride(&graph->nodes[i], n_ctx) * (int64_t)sizeof(float));
        if (fit < rows) rows = fit;
    }
    if (rows > ROWS_AT_ONCE) rows -= rows % ROWS_AT_ONCE;
    if (rows < 16) rows = 16;
    return rows < n_ctx ? (int32_t)rows : n_ctx;
}

int32_t fd_fast_batch_rows(int32_t n_ctx) {
    return n_ctx < FD_FAST_ROWS ? n_ctx : FD_FAST_ROWS;
}

int32_t fd_step_rows(int32_t n_seq) {
    return n_seq < FD_MATVEC_TOKENS ? n_seq : FD_MATVEC_TOKENS;
}

bool fd_few_f16_takes(const fd_graph *graph, int32_t id) {
    const fd_node *node = &graph->nodes[id];
    return node->op == FD_OP_MATMUL && graph->weights[node->weight[0]].dtype == FD_F16 && !fd_feeds_choice(graph, id);
}

size_t fd_few_f16_scratch_bytes(const fd_graph *graph, int32_t n_seq) {
    enum {
        LEAST = 5,
        LONG = 2048
    }; /* fewer sequences, and up to eight with short rows, are faster by exact's kernels */
    size_t most = 0;
    int64_t shortest = INT64_MAX;
    for (int32_t i = 0; i < graph->n_node; i++) {
        if (!fd_few_f16_takes(graph, i)) continue;
        const int64_t n_col = graph->weights[graph->nodes[i].weight[0]].n_col;
        const size_t bytes = fd_few_f16_bytes(n_col, n_seq);
        if (bytes > most) most = bytes;
        if (n_col < shortest) shortest = n_col;
    }
    const bool faster = n_seq >= LEAST && (n_seq > fd_step_rows(n_seq) || shortest >= LONG);
    return faster && n_seq <= FD_FEW_F16 ? most : 0;
}

/* What memory depends on: of a graph, or of one GPU's split of it. */
typedef struct plans {
    const fd_graph *whole; /* by which all GPUs cut a long prompt alike */
    fd_split split;
    bool is_split, has_mailbox, has_staging;
    uint64_t weights;
    fd_plan prompt, step, batch;
} plans;

static void free_plans(plans *p) {
    fd_plan_free(&p->prompt);
    fd_plan_free(&p->step);
    fd_plan_free(&p->batch);
    if (p->is_split) fd_split_free(&p->split);
}

static fd_code make_plans(const fd_graph *whole, const fd_engine_size *size, fd_rank_of rank, plans *out,
                          fd_error *err) {
    bool fast = size->numerics == FD_NUMERICS_FAST;
    *out = (plans){.whole = whole,
                   .is_split = rank.n > 1,
                   .has_mailbox = rank.n > 1 && !rank.apart,
                   .has_staging = rank.n > 1 && rank.nccl};
    if (out->is_split) FD_TRY(fd_split_make(whole, rank.n, rank.rank, &out->split, err));
    const fd_graph *graph = out->is_split ? out->split.graph : whole;
    fd_code code = fd_weights_bytes(graph, &out->weights, err);
    if (code == FD_OK) code = fd_plan_make(graph, fast ? FD_PLAN_FAST_ROWS : FD_PLAN_ROWS, &out->prompt, err);
    if (code == FD_OK) code = fd_plan_make(graph, fast ? FD_PLAN_FAST_BATCH : FD_PLAN_BATCH, &out->batch, err);
    bool as_batch =
        code == FD_OK && fast && fd_plan_batches(&out->batch) && fd_few_f16_scratch_bytes(graph, size->n_seq) > 0;
    fd_plan_kind step = as_batch ? FD_PLAN_FAST_BATCH : fast ? FD_PLAN_FAST_STEP : FD_PLAN_STEP;
    if (code == FD_OK) code = fd_plan_make(graph, step, &out->step, err);
    if (code != FD_OK) free_plans(out);
    return code;
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

static fd_engine_memory measure(const plans *p, const fd_engine_size *size) {
    const fd_graph *graph = p->step.graph;
    int32_t n_ctx = size->n_ctx, n_seq = size->n_seq > 1 ? size->n_seq : 1;
    bool fast = size->numerics == FD_NUMERICS_FAST, q8act = size->numerics == FD_NUMERICS_Q8ACT;
    bool batches = n_seq > 1 && fd_plan_batches(&p->batch);
    int32_t prompt = fast ? fd_fast_batch_rows(n_ctx) : fd_engine_batch_rows(p->whole, n_ctx);
    int32_t step = fd_step_rows(n_seq);
    fd_state_layout state = fd_state_lay_out(graph, n_ctx, n_seq, fast);
    fd_engine_memory m = {.weights = p->weights, .cache = state.cache_bytes};
    m.scratch = state.bytes - m.cache + fd_slots_bytes(&p->prompt, (fd_extent){prompt, n_ctx, 1}) +
                fd_slots_bytes(&p->step, (fd_extent){step, n_ctx, step});
    if (p->has_mailbox) m.scratch += fd_align(fd_mailbox_bytes(fd_ranks_page(graph, n_seq)));
    if (p->has_staging)
        m.scratch += fd_align(fd_nccl_staging_bytes(sizeof(float) * (size_t)fd_ranks_page(graph, n_seq)));
    if (batches) m.scratch += fd_slots_bytes(&p->batch, (fd_extent){n_seq, n_ctx, n_seq});
    if (q8act && prompt > 1) m.scratch += fd_align(fd_q8_scratch_bytes(graph, prompt));
    if ((q8act || fast) && batches) m.scratch += fd_align(fd_q8_scratch_bytes(graph, n_seq));
    if (fast && batches) m.scratch += fd_align(fd_few_f16_scratch_bytes(graph, n_seq));
    if (fast) {
        fd_launch_context ctx = {.n_sm = size->n_sm};
        m.scratch += FD_CUBLAS_WORKSPACE + fd_align(fd_fast_weight_bytes(&p->prompt)) +
                     fd_fast_scratch_bytes(graph, &ctx, n_ctx, n_seq);
    } else if (n_seq == 1 && !p->is_split) {
        m.observed = fd_async_bytes(graph, n_ctx);
    }
    return m;
}

fd_code fd_engine_memory_needed(const fd_graph *graph, const fd_engine_size *size, fd_engine_memory *out,
                                fd_error *err) {
    return fd_engine_memory_of_rank(graph, size, (fd_rank_of){0}, out, err);
}

fd_code fd_engine_memory_of_rank(const fd_graph *graph, const fd_engine_size *size, fd_rank_of rank,
                                 fd_engine_memory *out, fd_error *err) {
    plans p;
    *out = (fd_engine_memory){0};
    FD_TRY(make_plans(graph, size, rank, &p, err));
    *out = measure(&p, size);
    free_plans(&p);
    return FD_OK;
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
static int32_t context_that_fits(const plans *p, const fd_engine_size *size, uint64_t free_bytes) {
    int32_t fits = 0, too_long = size->n_ctx;
    while (too_long - fits > 1) {
        fd_engine_size middle = *size;
        middle.n_ctx = fits + (too_long - fits) / 2;
        fd_engine_memory m = measure(p, &middle);
        if (fd_engine_memory_total(&m) <= free_bytes)
            fits = middle.n_ctx;
        else
            too_long = middle.n_ctx;
    }
    return fits;
}

fd_code fd_engine_memory_fits(const fd_graph *graph, const fd_engine_size *size, fd_rank_of rank, uint64_t free_bytes,
                              fd_error *err) {
    char text[256], advice[96];
    plans p;
    FD_TRY(make_plans(graph, size, rank, &p, err));
    fd_engine_memory m = measure(&p, size);
    bool fit = fd_engine_memory_total(&m) <= free_bytes;
    int32_t fits = fit ? 0 : context_that_fits(&p, size, free_bytes);
    free_plans(&p);
    if (fit) return FD_OK;
    if (fits > 0)
        snprintf(advice, sizeof advice, "a context of %d positions would fit", fits);
    else
        snprintf(advice, sizeof advice, "%s",
                 m.weights > free_bytes ? "the weights alone do not fit" : "no context fits");
    m.observed = 0; /* a refusal is about what an engine must have */
    fd_engine_memory_text(&m, size, free_bytes, text, sizeof text);
    return fd_fail(err, FD_ERR_MEMORY, "device memory: %s; %s", text, advice);
}
