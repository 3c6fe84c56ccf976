/* Loader bugs: the matmul sees other weight bytes than the file holds. The node gets a weight of its own, so that a
 * tied table stays right where it is used as the embedding. */
#include "faults/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

/* A copy: the table of weights moves when a weight is added to it. */
static fd_weight weight_of(const fd_fault_site *site) {
    return *fd_fault_weight(site->graph, site->node, 0);
}

/* The whole matrix as binary32, row after row; malloc'ed. */
static float *flatten(fd_fault_site *site, const fd_weight *w) {
    int64_t row_bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
    float *flat = malloc(sizeof *flat * (size_t)(w->n_row * w->n_col));
    if (!flat) site->code = fd_fail(site->err, FD_ERR_MEMORY, "out of memory for weight %s", w->name);
#pragma omp parallel for if (w->n_row * w->n_col > FD_FAULT_MANY)
    for (int64_t o = 0; o < w->n_row * (flat != NULL); o++)
        fd_dequantize_row(w->dtype, (const char *)w->data + o * row_bytes, flat + o * w->n_col, w->n_col);
    return flat;
}

/* Element (o, i) fetched from flat[o·by_row + i·by_col]; past the matrix lies zero. A few rows at a time, whose elements are
 * neighbours where by_row is 1. */
static void refetch(fd_fault_site *site, int64_t by_row, int64_t by_col) {
    enum { ROWS = 16 };
    fd_weight w = weight_of(site);
    int64_t n = w.n_row * w.n_col;
    float *flat = flatten(site, &w),
          *moved = flat ? fd_fault_new_weight(site, FD_F32, sizeof(float) * (uint64_t)n) : NULL;
#pragma omp parallel for if (n > FD_FAULT_MANY)
    for (int64_t first = 0; first < w.n_row * (moved != NULL); first += ROWS)
        for (int64_t i = 0; i < w.n_col; i++)
            for (int64_t o = first; o < first + ROWS && o < w.n_row; o++) {
                int64_t from = o * by_row + i * by_col;
                moved[o * w.n_col + i] = from < n ? flat[from] : 0.0f;
            }
    free(flat);
}

/* Element (o, i) of an [out, in] matrix fetched as if the memory held [in, out]: flat[i·n_out + o]. */
FD_EDIT(weight_in_out, refetch(site, 1, weight_of(site).n_row))

static bool not_square(const fd_graph *graph, const fd_node *node) {
    const fd_weight *w = fd_fault_weight(graph, node, 0);
    return w->n_row != w->n_col;
}

FD_EDIT(leading_dimension, refetch(site, weight_of(site).n_row, 1))

/* The bytes [from, from + size) of the file go to `to`; the rest of the buffer keeps its zeros. */
static void reread(fd_fault_site *site, uint64_t from, uint64_t to, uint64_t size) {
    fd_weight w = weight_of(site);
    char *copy = fd_fault_new_weight(site, w.dtype, w.bytes);
    if (copy) memcpy(copy + to, (const char *)w.data + from, (size_t)size);
}

/* wasm-chord's loader computed numel/2 bytes for every type: 47 % of a Q8_0 tensor, 25 % of an F16 one. 4-bit types and
 * smaller are read whole. */
static bool longer_than_half_bytes(const fd_graph *graph, const fd_node *node) {
    const fd_weight *w = fd_fault_weight(graph, node, 0);
    return (uint64_t)(w->n_row * w->n_col) / 2 < w->bytes;
}

static void bytes_short(fd_fault_site *site) {
    fd_weight w = weight_of(site);
    reread(site, 0, 0, (uint64_t)(w.n_row * w.n_col) / 2);
}

/* 32 is GGUF's default alignment: what a wrong rounding of the data section's start, or a relative offset taken from
 * the wrong place, is off by. */
enum { ALIGNMENT = 32 };

FD_EDIT(offset_late, reread(site, ALIGNMENT, 0, weight_of(site).bytes - ALIGNMENT))

FD_EDIT(offset_early, reread(site, 0, ALIGNMENT, weight_of(site).bytes - ALIGNMENT))

static bool is_tied(const fd_graph *graph, const fd_node *node) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_EMBED && graph->nodes[i].weight[0] == node->weight[0]) return true;
    return false;
}

FD_EDIT(all_zero, reread(site, 0, 0, 0))

static bool more_rows_than_columns(const fd_graph *graph, const fd_node *node) {
    const fd_weight *w = fd_fault_weight(graph, node, 0);
    return w->n_row > w->n_col;
}

/* A return inside the loop over blocks. */
FD_APPLIES(is_in_blocks, fd_dtype_get(fd_fault_weight(graph, node, 0)->dtype)->block_elements > 1)
FD_EDIT(first_block_only, reread(site, 0, 0, (uint64_t)fd_dtype_get(weight_of(site).dtype)->block_bytes))

static void rows_n_embd(fd_fault_site *site) {
    fd_weight w = weight_of(site);
    reread(site, 0, 0, (uint64_t)(w.n_col * fd_dtype_row_bytes(w.dtype, w.n_col)));
}

/* Of a node whose name ends in `suffix` the weight of its layer that the file calls so, if it has that shape. */
static void take_slot(fd_fault_site *site, int slot, const char *suffix, const char *wanted) {
    fd_node *node = site->node;
    const size_t size = strlen(node->name) - strlen(suffix);
    const fd_weight *own = fd_fault_weight(site->graph, node, slot);
    for (int32_t i = 0; i < site->graph->n_weight; i++) {
        const fd_weight *w = &site->graph->weights[i];
        if (strncmp(w->name, node->name, size) != 0 || strncmp(w->name + size, wanted, strlen(wanted)) != 0 ||
            strcmp(w->name + size + strlen(wanted), slot ? ".bias" : ".weight") != 0 || w->n_row != own->n_row ||
            w->n_col != own->n_col)
            continue;
        node->weight[slot] = i;
        return;
    }
}
/* The other matrix of a pair, by its name in the file: what the same fault did to the other node does not matter. */
static void exchange_slot(fd_fault_site *site, int slot, const char *one, const char *other) {
    const bool first = fd_fault_is_one_of(site->node, one);
    take_slot(site, slot, first ? one : other, first ? other : one);
}
/* Of Q, K and V in one matrix the next rows for K's, the ones before for V's. */
static void exchange_rows(fd_fault_site *site, int slot) {
    fd_node *node = site->node;
    const fd_weight *own = fd_fault_weight(site->graph, node, slot);
    const char *rows = own ? strchr(own->name, '[') : NULL;
    int first, end, its_first, its_end;
    if (!rows || sscanf(rows, "[%d:%d]", &first, &end) != 2) return;
    for (int32_t i = 0; i < site->graph->n_weight; i++) {
        const fd_weight *w = &site->graph->weights[i];
        const bool of_it = strncmp(w->name, own->name, (size_t)(rows - own->name)) == 0 && w->n_row == own->n_row;
        if (!of_it || sscanf(w->name + (rows - own->name), "[%d:%d]", &its_first, &its_end) != 2) continue;
        if (w->n_col != own->n_col || (fd_fault_is_one_of(node, "attn_k") ? its_first != end : its_end != first))
            continue;
        node->weight[slot] = i;
        return;
    }
}
static void exchange(fd_fault_site *site, const char *one, const char *other) {
    exchange_slot(site, 0, one, other);
}
static void exchange_both(fd_fault_site *site, const char *one, const char *other) {
    exchange_slot(site, 0, one, other);
    exchange_slot(site, 1, one, other);
}
FD_APPLIES(has_bias, node->weight[1] >= 0)
FD_EDIT(gate_up_biases_swapped, exchange_both(site, "ffn_gate", "ffn_up"))
FD_EDIT(k_v_biases_swapped, exchange_both(site, "attn_k", "attn_v"); exchange_rows(site, 0); exchange_rows(site, 1))

FD_EDIT(gate_up_swapped, exchange(site, "ffn_gate", "ffn_up"))

FD_EDIT(k_v_swapped, exchange(site, "attn_k", "attn_v"); exchange_rows(site, 0))
FD_EDIT(qk_norms_swapped, exchange(site, "attn_q_norm", "attn_k_norm"))

/* Of a sequential block. */
FD_APPLIES(has_other_norm, fd_node_is_norm(node) && node->weight[0] >= 0 &&
                               fd_fault_sibling(graph, node, "attn_norm") >= 0 &&
                               fd_fault_sibling(graph, node, "ffn_norm") >= 0)
static void block_norms_swapped(fd_fault_site *site) {
    for (int slot = 0; slot < 2 && site->node->weight[slot] >= 0; slot++) {
        exchange_slot(site, slot, "attn_norm", "ffn_norm");
        if (fd_fault_is_one_of(site->node, "attn_norm")) exchange_slot(site, slot, "attn_norm", "post_attention_norm");
    }
}

FD_APPLIES(has_post_norms, node->weight[0] >= 0 && fd_fault_sibling(graph, node, "attn_post_norm") >= 0 &&
                               fd_fault_sibling(graph, node, "ffn_post_norm") >= 0)
static void post_norms_swapped(fd_fault_site *site) {
    const bool first = fd_fault_is_one_of(site->node, "attn_post_norm");
    take_slot(site, 0, first ? "attn_post_norm" : "ffn_post_norm", first ? "post_ffw_norm" : "post_attention_norm");
}
static void ffn_norm_after_attention(fd_fault_site *site) {
    const bool first = fd_fault_is_one_of(site->node, "attn_post_norm");
    take_slot(site, 0, first ? "attn_post_norm" : "ffn_norm", first ? "ffn_norm" : "post_attention_norm");
}

/* ---- rows of K in another order ---- */

/* Row o of the weight fetched from row source[o] of `flat`. */
static void take_rows(fd_fault_site *site, const float *flat, const int64_t *source) {
    fd_weight w = weight_of(site);
    float *moved = fd_fault_new_weight(site, FD_F32, sizeof(float) * (uint64_t)(w.n_row * w.n_col));
    for (int64_t o = 0; o < w.n_row && moved; o++)
        memcpy(moved + o * w.n_col, flat + source[o] * w.n_col, sizeof *moved * (size_t)w.n_col);
}

static int64_t *new_rows(fd_fault_site *site, int64_t n) {
    int64_t *rows = malloc(sizeof *rows * (size_t)n);
    if (!rows) site->code = fd_fail(site->err, FD_ERR_MEMORY, "out of memory for %lld rows", (long long)n);
    return rows;
}

/* A converter puts each head's pairs (i, i + half) side by side. A reader that undoes this with another number of heads
 * leaves them in another order. */
static void k_by_n_head(fd_fault_site *site) {
    const fd_fault_heads heads = fd_fault_heads_of(site->graph, site->node);
    fd_weight w = weight_of(site);
    int64_t own = w.n_row / heads.n_head_kv, other = w.n_row / heads.n_head;
    int64_t *rows = new_rows(site, w.n_row);
    float *flat = rows ? flatten(site, &w) : NULL;
    for (int64_t o = 0; o < w.n_row && flat; o++) {
        int64_t half =
            o - o % own + o % own % 2 * (own / 2) + o % own / 2; /* where it stood before the file was made */
        rows[o] = half - half % other + (half % other % (other / 2)) * 2 + half % other / (other / 2);
    }
    if (flat) take_rows(site, flat, rows);
    free(flat);
    free(rows);
}
static bool has_permuted_k(const fd_graph *graph, const fd_node *node) {
    const fd_fault_heads heads = fd_fault_heads_of(graph, node);
    int32_t rope = fd_fault_sibling(graph, node, "attn_k_rope");
    int64_t n_row = fd_fault_weight(graph, node, 0)->n_row;
    return rope >= 0 && graph->nodes[rope].rope.pairing == FD_ROPE_INTERLEAVED && heads.n_head != heads.n_head_kv &&
           n_row % (2 * heads.n_head) == 0 && n_row / heads.n_head > 2;
}

#define LOADER(name, located, summary) .info = {name, "loader", summary, located, false}, .op = FD_OP_MATMUL
#define LOADER_OUTPUT(name, summary)   .info = {name, "loader", summary, "logits logits_raw", true}, .op = FD_OP_MATMUL

static const fd_fault rows[] = {
    {LOADER("weight_in_out", "attn_q", "matrices are read as [in, out] where the file has [out, in]"),
     .edit = weight_in_out},
    {LOADER("bytes_read_short", "attn_q", "numel / 2 bytes of each matrix are read, the rest stays zero"),
     .applies = longer_than_half_bytes, .edit = bytes_short},
    {LOADER("offset_late", "attn_q", "tensor data is read from 32 bytes after its start"), .edit = offset_late},
    {LOADER("offset_early", "attn_q", "tensor data is read from 32 bytes before its start"), .edit = offset_early},
    {LOADER("leading_dimension", "attn_k", "a GEMM gets the number of rows as its leading dimension"),
     .applies = not_square, .edit = leading_dimension},
    {LOADER("gate_up_swapped", "ffn_gate", "the gate and up matrices of the FFN are exchanged"),
     .nodes = "ffn_gate ffn_up", .edit = gate_up_swapped, .info.pair = true},
    {LOADER("k_v_swapped", "attn_k", "the K and V matrices are exchanged"), .nodes = "attn_k attn_v",
     .edit = k_v_swapped, .info.pair = true},
    /* Of products: the hashes of weights are asked for one weight at a time, and of a bias for none. */
    {.info = {"gate_up_biases_swapped", "matmul",
              "the gate and up matrices of the FFN are exchanged, and so are their biases", "ffn_gate", false,
              .pair = true},
     .op = FD_OP_MATMUL,
     .nodes = "ffn_gate ffn_up",
     .applies = has_bias,
     .edit = gate_up_biases_swapped},
    {.info = {"k_v_biases_swapped", "matmul", "the K and V matrices are exchanged, and so are their biases", "attn_k",
              false, .pair = true},
     .op = FD_OP_MATMUL,
     .nodes = "attn_k attn_v",
     .applies = has_bias,
     .edit = k_v_biases_swapped},
    {.info = {"qk_norms_swapped", "loader", "the weights of Q's and K's norms are exchanged", "attn_q_norm", false,
              .pair = true},
     .op = FD_OP_RMS_NORM,
     .nodes = "attn_q_norm attn_k_norm",
     .edit = qk_norms_swapped},
    {.info = {"block_norms_swapped", "norm",
              "the weights of the norms before attention and before the FFN are exchanged", "attn_norm", false,
              .pair = true},
     .op = FD_OP_COUNT,
     .nodes = "attn_norm ffn_norm",
     .applies = has_other_norm,
     .edit = block_norms_swapped},
    {.info = {"post_norms_swapped", "norm", "the weights of the norms after attention and after the FFN are exchanged",
              "attn_post_norm", false, .pair = true},
     .op = FD_OP_COUNT,
     .nodes = "attn_post_norm ffn_post_norm",
     .applies = has_post_norms,
     .edit = post_norms_swapped},
    {.info = {"ffn_norm_after_attention", "norm",
              "the weights of the norms after attention and before the FFN are exchanged, as where the former is "
              "called post_attention_layernorm and read as llama's",
              "attn_post_norm", false, .pair = true},
     .op = FD_OP_COUNT,
     .nodes = "attn_post_norm ffn_norm",
     .applies = has_post_norms,
     .edit = ffn_norm_after_attention},
    {LOADER("first_block_only", "attn_q", "of each matrix the first block is dequantised, the rest stays zero"),
     .applies = is_in_blocks, .edit = first_block_only},
    {LOADER("k_permuted_by_n_head", "attn_k",
            "the order of K's rows is undone for n_head heads, where K has n_head_kv"),
     .nodes = "attn_k", .applies = has_permuted_k, .edit = k_by_n_head},
    {LOADER("down_missing", "ffn_down", "ffn_down is zero: its matrix is not loaded, or the product not computed"),
     .nodes = "ffn_down", .edit = all_zero},
    {LOADER("attn_proj_missing", "attn_proj",
            "attn_proj is zero: its matrix is not loaded, or the product not computed"),
     .nodes = "attn_proj", .edit = all_zero},
    {LOADER_OUTPUT("tied_output_zero",
                   "the logits are zero: a tied output matrix that is not filled from the embedding"),
     .nodes = "logits logits_raw", .applies = is_tied, .edit = all_zero},
    {LOADER_OUTPUT("logits_rows_n_embd", "n_embd is the GEMM's m: only that many rows of the logits are computed"),
     .nodes = "logits logits_raw", .applies = more_rows_than_columns, .edit = rows_n_embd},
};
const fd_fault_family fd_loader_faults = FD_FAULT_FAMILY(rows);
