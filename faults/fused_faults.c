/* Gate and up, or Q, K and V, as one matrix that is split by another layout than it was put together by: each gets rows of the
 * others. Where the split is of the products, gate_up_faults.c. */
#include "faults/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

enum { MOST_PARTS = 3 };

/* The matrices that make one, in the order of the file, and which of them the node reads. */
typedef struct fused {
    const fd_weight *part[MOST_PARTS];
    int n_part, own;
    int64_t n_query, dim; /* of Q, K and V: query heads to a K/V head, and a head's rows */
} fused;

/* "blk.3.ffn_up.weight" of the node's layer; NULL: the file has none. */
static const fd_weight *named(const fd_graph *graph, const fd_node *node, const char *kind) {
    char name[96];
    snprintf(name, sizeof name, "blk.%d.%s.weight", node->layer, kind);
    for (int32_t i = 0; i < graph->n_weight; i++)
        if (strcmp(graph->weights[i].name, name) == 0) return &graph->weights[i];
    return NULL;
}

/* Part number `part` of a matrix that the file has as one, "blk.0.attn_qkv.weight[128:192]": the one before which so many begin. */
static const fd_weight *piece(const fd_graph *graph, const fd_node *node, const char *whole, int part) {
    char prefix[96];
    const size_t n = (size_t)snprintf(prefix, sizeof prefix, "blk.%d.%s.weight[", node->layer, whole);
    for (int32_t i = 0; i < graph->n_weight; i++) {
        if (strncmp(graph->weights[i].name, prefix, n) != 0) continue;
        int before = 0;
        for (int32_t k = 0; k < graph->n_weight; k++)
            before += strncmp(graph->weights[k].name, prefix, n) == 0 &&
                      atol(graph->weights[k].name + n) < atol(graph->weights[i].name + n);
        if (before == part) return &graph->weights[i];
    }
    return NULL;
}

/* False: they are no matrices that one could be made of. */
static bool fuse(const fd_graph *graph, const fd_node *node, const char *const kinds[MOST_PARTS], const char *whole,
                 fused *out) {
    *out = (fused){.own = -1};
    for (int i = 0; i < MOST_PARTS && kinds[i]; i++) {
        const fd_weight *w = named(graph, node, kinds[i]);
        if (!named(graph, node, kinds[0])) w = piece(graph, node, whole, i);
        out->part[out->n_part++] = w;
        if (!w || w->n_col != out->part[0]->n_col) return false;
        if (fd_fault_is_one_of(node, kinds[i])) out->own = i;
    }
    return out->own >= 0;
}

static const char *const gate_up[MOST_PARTS] = {"ffn_gate", "ffn_up"};
static const char *const qkv[MOST_PARTS] = {"attn_q", "attn_k", "attn_v"};

static bool fuse_gate_up(const fd_graph *graph, const fd_node *node, fused *out) {
    return fuse(graph, node, gate_up, "ffn_up", out) && out->part[0]->n_row == out->part[1]->n_row;
}

static bool fuse_qkv(const fd_graph *graph, const fd_node *node, fused *out) {
    const fd_fault_heads heads = fd_fault_heads_of(graph, node);
    if (heads.n_head_kv < 2 || !fuse(graph, node, qkv, "attn_qkv", out)) return false;
    const int64_t n_key = out->part[1]->n_row;
    out->n_query = heads.n_head / heads.n_head_kv;
    out->dim = n_key / heads.n_head_kv;
    return n_key % heads.n_head_kv == 0 && out->part[2]->n_row == n_key &&
           out->part[0]->n_row == heads.n_head * out->dim;
}

/* Row i of the parts one after the other, as the file has it where all are of one type, else as binary32. */
static void take_row(const fused *f, int64_t i, uint32_t dtype, void *to) {
    int part = 0;
    while (part < f->n_part - 1 && i >= f->part[part]->n_row) i -= f->part[part++]->n_row;
    const fd_weight *w = f->part[part];
    const int64_t row_bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
    const char *row = (const char *)w->data + i * row_bytes;
    if (w->dtype == dtype)
        memcpy(to, row, (size_t)row_bytes);
    else
        fd_dequantize_row(w->dtype, row, to, w->n_col);
}

/* Of the parts one after the other: where row i of the own part stands. */
static int64_t place_in_blocks(const fused *f, int64_t i) {
    for (int part = 0; part < f->own; part++) i += f->part[part]->n_row;
    return i;
}

/* With what belongs together side by side, gate's row and up's, or a K/V head's queries, K and V: the row of the blocks that stands
 * at place i; and the place where row i of the own part stands. */
static int64_t block_at(const fused *f, int64_t i) {
    if (!f->dim) return i % 2 * f->part[0]->n_row + i / 2;
    const int64_t each = f->n_query + 2, group = i / f->dim / each, which = i / f->dim % each, d = i % f->dim;
    const int64_t queries = f->part[0]->n_row, keys = f->part[1]->n_row;
    if (which < f->n_query) return (group * f->n_query + which) * f->dim + d;
    return queries + (which == f->n_query ? 0 : keys) + group * f->dim + d;
}
static int64_t place_in_groups(const fused *f, int64_t i) {
    if (!f->dim) return 2 * i + f->own;
    const int64_t head = i / f->dim, d = i % f->dim, each = f->n_query + 2;
    const int64_t group = f->own ? head : head / f->n_query;
    return (group * each + (f->own ? f->n_query + f->own - 1 : head % f->n_query)) * f->dim + d;
}

/* `groups`: the matrix holds groups and is read as blocks; else the other way round. */
static void split(fd_fault_site *site, const fused *f, bool groups) {
    const fd_weight own = *f->part[f->own];
    uint32_t dtype = own.dtype;
    for (int i = 0; i < f->n_part; i++)
        if (f->part[i]->dtype != own.dtype) dtype = FD_F32;
    const int64_t row_bytes = fd_dtype_row_bytes(dtype, own.n_col);
    char *rows = fd_fault_new_weight(site, dtype, (uint64_t)(own.n_row * row_bytes));
    for (int64_t i = 0; i < own.n_row && rows; i++)
        take_row(f, groups ? block_at(f, place_in_blocks(f, i)) : place_in_groups(f, i), dtype, rows + i * row_bytes);
}

static bool is_gate_up(const fd_graph *graph, const fd_node *node) {
    fused f;
    return fuse_gate_up(graph, node, &f);
}
static bool is_qkv(const fd_graph *graph, const fd_node *node) {
    fused f;
    return fuse_qkv(graph, node, &f);
}
static void split_gate_up(fd_fault_site *site, bool groups) {
    fused f;
    if (fuse_gate_up(site->graph, site->node, &f)) split(site, &f, groups);
}
static void split_qkv(fd_fault_site *site, bool groups) {
    fused f;
    if (fuse_qkv(site->graph, site->node, &f)) split(site, &f, groups);
}
FD_EDIT(gate_up_as_pairs, split_gate_up(site, false))
FD_EDIT(gate_up_as_halves, split_gate_up(site, true))
FD_EDIT(qkv_as_heads, split_qkv(site, false))
FD_EDIT(qkv_as_parts, split_qkv(site, true))

#define FUSED(name, where, summary) .info = {name, "loader", summary, where, false}, .op = FD_OP_MATMUL

static const fd_fault rows[] = {
    {FUSED("gate_up_rows_interleaved", "ffn_gate",
           "gate and up are one matrix, [gate, up], of which every second row is taken for gate, the others for up"),
     .nodes = "ffn_gate ffn_up", .applies = is_gate_up, .edit = gate_up_as_pairs},
    {FUSED("gate_up_rows_halved", "ffn_gate",
           "gate and up are one matrix, a row of each in turn, of which the first half is taken for gate"),
     .nodes = "ffn_gate ffn_up", .applies = is_gate_up, .edit = gate_up_as_halves},
    {FUSED("qkv_by_group", "attn_q",
           "the rows of Q, K and V, one matrix, are taken for each group's queries, key and value in turn"),
     .nodes = "attn_q attn_k attn_v", .applies = is_qkv, .edit = qkv_as_heads},
    {FUSED(
         "qkv_by_part", "attn_q",
         "each group's queries, key and value stand in turn in one matrix, whose rows are taken for Q, then K, then V"),
     .nodes = "attn_q attn_k attn_v", .applies = is_qkv, .edit = qkv_as_parts},
};
const fd_fault_family fd_fused_faults = FD_FAULT_FAMILY(rows);
