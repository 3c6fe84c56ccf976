#include "reference_cpu/buffers.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "reference_cpu/ops.h"

enum { CACHE_LINE = 64 };

static fd_code make_block(fd_ref_block *block, size_t size, const char *what, fd_error *err) {
    char *base = calloc(1, size + CACHE_LINE);
    if (!base) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory for %zu bytes", what, size);
    *block = (fd_ref_block){base, base + (CACHE_LINE - (uintptr_t)base % CACHE_LINE) % CACHE_LINE, size};
    return FD_OK;
}

static fd_code grow_block(fd_ref_block *block, size_t size, const char *what, fd_error *err) {
    if (size <= block->size) return FD_OK;
    free(block->base);
    memset(block, 0, sizeof *block);
    return make_block(block, size, what, err);
}

/* ---- the plan: which node's rows go to which slot ---- */

static int32_t last_reader(const fd_graph *graph, int32_t id) {
    int32_t last = id == graph->n_node - 1 ? INT32_MAX : id; /* the logits are read after the graph */
    for (int32_t i = id + 1; i < graph->n_node; i++)
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (graph->nodes[i].input[k] == id) last = i;
    return last;
}

static int32_t slot_for(fd_ref_buffers *b, const fd_node *node) {
    int32_t s = 0;
    while (s < b->n_slot && b->slots[s].busy_until >= node->id) s++;
    if (s == b->n_slot) b->n_slot++;
    fd_ref_slot *slot = &b->slots[s];
    slot->busy_until = last_reader(b->graph, node->id);
    if (node->over_kv)
        slot->n_head = node->shape[0] > slot->n_head ? node->shape[0] : slot->n_head;
    else
        slot->width = fd_node_width(node) > slot->width ? fd_node_width(node) : slot->width;
    return s;
}

/* Backwards: a cache needs every row, and so does all that a needed row is made from. */
static void mark_feeders(fd_ref_buffers *b) {
    for (int32_t i = b->graph->n_node - 1; i >= 0; i--) {
        const fd_node *node = &b->graph->nodes[i];
        if (node->op == FD_OP_KV_WRITE) b->feeds_cache[i] = true;
        for (int k = 0; k < FD_MAX_INPUTS && b->feeds_cache[i]; k++)
            if (node->input[k] >= 0) b->feeds_cache[node->input[k]] = true;
    }
}

static fd_code rope_for(fd_ref_buffers *b, const fd_node *node, int32_t *out, fd_error *err) {
    for (*out = 0; *out < b->n_rope; ++*out)
        if (fd_rope_same_table(b->ropes[*out].node, node)) return FD_OK;
    fd_ref_rope_table *table = &b->ropes[b->n_rope++];
    size_t size = b->real_size * (size_t)b->n_ctx * (size_t)(node->rope.n_rot / 2);
    table->node = node;
    FD_TRY(make_block(&table->cos, size, "rope table", err));
    return make_block(&table->sin, size, "rope table", err);
}

/* Of one node's cache, a sequence. */
static size_t cache_bytes(const fd_ref_buffers *b, int32_t node, int32_t n_row) {
    return b->real_size * (size_t)n_row * (size_t)fd_node_width(&b->graph->nodes[node]);
}

fd_code fd_ref_buffers_make(fd_ref_buffers *b, const fd_graph *graph, fd_numerics numerics, int32_t n_ctx,
                            int32_t n_seq, fd_error *err) {
    size_t n = (size_t)graph->n_node;
    *b = (fd_ref_buffers){.graph = graph, .numerics = numerics, .n_ctx = n_ctx, .n_seq = n_seq};
    b->real_size = numerics == FD_NUMERICS_F64 ? sizeof(double) : sizeof(float);
    b->slots = calloc(n, sizeof *b->slots);
    b->slot_of = calloc(n, sizeof *b->slot_of);
    b->feeds_cache = calloc(n, sizeof *b->feeds_cache);
    b->caches = calloc(n, sizeof *b->caches);
    b->ropes = calloc(n, sizeof *b->ropes);
    b->rope_of = calloc(n, sizeof *b->rope_of);
    if (!b->slots || !b->slot_of || !b->feeds_cache || !b->caches || !b->ropes || !b->rope_of)
        return fd_fail(err, FD_ERR_MEMORY, "executor: out of memory for %zu nodes", n);

    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        bool cache = node->op == FD_OP_KV_WRITE;
        b->slot_of[i] = cache ? -1 : slot_for(b, node);
        b->rope_of[i] = -1;
        if (cache) FD_TRY(make_block(&b->caches[i], cache_bytes(b, i, n_ctx) * (size_t)n_seq, node->name, err));
        if (node->op == FD_OP_ROPE) FD_TRY(rope_for(b, node, &b->rope_of[i], err));
    }
    mark_feeders(b);
    return fd_ref_buffers_reserve(b, 1, 1, err);
}

void fd_ref_buffers_free(fd_ref_buffers *b) {
    for (int32_t i = 0; i < b->n_slot; i++) free(b->slots[i].block.base);
    for (int32_t i = 0; b->caches && i < b->graph->n_node; i++) free(b->caches[i].base);
    for (int32_t i = 0; i < b->n_rope; i++) {
        free(b->ropes[i].cos.base);
        free(b->ropes[i].sin.base);
    }
    free(b->slots);
    free(b->slot_of);
    free(b->feeds_cache);
    free(b->caches);
    free(b->ropes);
    free(b->rope_of);
}

/* ---- before each pass ---- */

static void extend_rope(fd_ref_buffers *b, fd_ref_rope_table *t, int32_t n_kv) {
    const fd_rope *rope = &t->node->rope;
    const fd_weight *factors = t->node->weight[0] >= 0 ? &b->graph->weights[t->node->weight[0]] : NULL;
    int64_t at = (int64_t)t->n_filled * (rope->n_rot / 2);
    int32_t n = n_kv - t->n_filled;
    if (n <= 0) return;
    if (b->numerics == FD_NUMERICS_F64)
        fd_rope_table_f64(rope, factors, t->n_filled, n, (double *)t->cos.data + at, (double *)t->sin.data + at);
    else
        fd_rope_table(rope, factors, t->n_filled, n, (float *)t->cos.data + at, (float *)t->sin.data + at);
    t->n_filled = n_kv;
}

fd_code fd_ref_buffers_reserve(fd_ref_buffers *b, int32_t n_row, int32_t n_kv, fd_error *err) {
    for (int32_t i = 0; i < b->n_slot; i++) {
        fd_ref_slot *slot = &b->slots[i];
        int64_t width = slot->width > slot->n_head * n_kv ? slot->width : slot->n_head * n_kv;
        if ((size_t)(n_row * width) * b->real_size <= slot->block.size) continue;
        /* one position at a time must never have to grow again */
        int64_t longest = slot->n_head * b->n_ctx, one_row = slot->width > longest ? slot->width : longest;
        int64_t elements = n_row * width > one_row ? n_row * width : one_row;
        FD_TRY(grow_block(&slot->block, (size_t)elements * b->real_size, "activations", err));
    }
    for (int32_t i = 0; i < b->n_rope; i++) extend_rope(b, &b->ropes[i], n_kv);
    return FD_OK;
}

void fd_ref_buffers_reset(fd_ref_buffers *b) {
    for (int32_t i = 0; i < b->graph->n_node; i++)
        for (int32_t s = 0; b->caches[i].data && s < b->n_seq; s++)
            memset(b->caches[i].data + cache_bytes(b, i, b->n_ctx) * (size_t)s, 0, cache_bytes(b, i, b->n_used));
    b->n_used = 0;
}

void *fd_ref_rows_of(const fd_ref_buffers *b, int32_t node) {
    if (b->slot_of[node] >= 0) return b->slots[b->slot_of[node]].block.data;
    return b->caches[node].data + cache_bytes(b, node, b->n_ctx) * (size_t)b->sequence;
}
