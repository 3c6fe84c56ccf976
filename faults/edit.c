/* What the families' edits and overrides share. */
#include "faults/internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/weight_rows.h"

void fd_fault_repack(fd_fault_site *site, const fd_fault_bytes edits[FD_DTYPE_LIMIT]) {
    const fd_weight w = *fd_fault_weight(site->graph, site->node, 0);
    const fd_fault_bytes edit = w.dtype < FD_DTYPE_LIMIT ? edits[w.dtype] : NULL;
    uint8_t *data = edit ? fd_fault_new_weight(site, w.dtype, w.bytes) : NULL;
    if (!data) return;
    memcpy(data, w.data, (size_t)w.bytes);
    const int64_t size = fd_dtype_get(w.dtype)->block_bytes, n_block = (int64_t)w.bytes / size;
    for (int64_t b = 0; b < n_block; b++) edit(data + b * size);
}

const fd_weight *fd_fault_weight(const fd_graph *graph, const fd_node *node, int slot) {
    return node->weight[slot] < 0 ? NULL : &graph->weights[node->weight[slot]];
}

void *fd_fault_new_weight(fd_fault_site *site, uint32_t dtype, uint64_t bytes) {
    fd_fault_owner *owner = site->owner;
    void **blocks = realloc(owner->blocks, sizeof *blocks * (size_t)(owner->n_block + 1));
    if (blocks) owner->blocks = blocks;
    void *block = blocks ? calloc(1, (size_t)bytes) : NULL;
    if (!block) {
        site->code = fd_fail(site->err, FD_ERR_MEMORY, "out of memory for a faulty weight of %llu bytes",
                             (unsigned long long)bytes);
        return NULL;
    }
    owner->blocks[owner->n_block++] = block;
    site->weight = *fd_fault_weight(site->graph, site->node, 0);
    site->weight.dtype = dtype;
    site->weight.bytes = bytes;
    site->weight.data = block;
    site->replaced = true;
    return block;
}

const char *fd_fault_suffix(const fd_node *node) {
    if (node->layer < 0) return node->name;
    const char *dot = strchr(node->name, '.');
    dot = dot ? strchr(dot + 1, '.') : NULL;
    return dot ? dot + 1 : node->name;
}

bool fd_fault_same_kind(const fd_node *a, const fd_node *b) {
    return strcmp(fd_fault_suffix(a), fd_fault_suffix(b)) == 0;
}

int32_t fd_fault_in_layer(const fd_graph *graph, const fd_node *node, int32_t layer) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].layer == layer && fd_fault_same_kind(&graph->nodes[i], node)) return i;
    return -1;
}

bool fd_fault_begins_kind(const fd_graph *graph, int32_t node) {
    for (int32_t i = 0; i < node; i++)
        if (fd_fault_same_kind(&graph->nodes[i], &graph->nodes[node])) return false;
    return true;
}

int32_t *fd_fault_kinds(const fd_graph *graph) {
    int32_t *first = malloc(sizeof *first * (size_t)(graph->n_node + 1));
    for (int32_t i = 0; first && i < graph->n_node; i++) {
        int32_t k = 0;
        while (k < i && (first[k] != k || !fd_fault_same_kind(&graph->nodes[k], &graph->nodes[i]))) k++;
        first[i] = k;
    }
    return first;
}

bool fd_fault_is_one_of(const fd_node *node, const char *words) {
    const char *suffix = fd_fault_suffix(node);
    for (size_t size; *words; words += size + (words[size] == ' ')) {
        size = strcspn(words, " ");
        if (strlen(suffix) == size && memcmp(suffix, words, size) == 0) return true;
    }
    return false;
}

bool fd_fault_shows_at(const fd_fault_info *info, const fd_node *node) {
    return fd_fault_is_one_of(node, info->located);
}

int32_t fd_fault_sibling(const fd_graph *graph, const fd_node *node, const char *suffix) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].layer == node->layer && strcmp(fd_fault_suffix(&graph->nodes[i]), suffix) == 0) return i;
    return -1;
}

fd_fault_heads fd_fault_heads_of(const fd_graph *graph, const fd_node *node) {
    const int32_t scores = fd_fault_sibling(graph, node, "attn_scores");
    if (scores < 0) return (fd_fault_heads){graph->hparams.n_head, graph->hparams.n_head_kv};
    return (fd_fault_heads){graph->nodes[scores].shape[0], graph->nodes[graph->nodes[scores].input[1]].shape[0]};
}

const fd_node *fd_fault_input(const fd_op_args *args, int i) {
    return &args->graph->nodes[args->node->input[i]];
}

int32_t fd_fault_batch_start(const fd_op_args *args, int32_t row) {
    int32_t own = args->pos0 + row, start = args->pos0 - args->batch_offset;
    return args->row_by_row || start > own ? own : start;
}

int32_t fd_fault_batch_end(const fd_op_args *args, int32_t row) {
    return args->row_by_row ? args->pos0 + row + 1 : args->batch_end ? args->batch_end : args->n_kv;
}

void fd_fault_copy(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = ((const float *)args->in[0])[i];
}

float *fd_fault_row(const fd_weight *weight, int64_t r) {
    float *values = malloc(sizeof *values * (size_t)weight->n_col);
    if (values) fd_weight_row(weight, r, values);
    return values;
}

void fd_fault_nan(const fd_op_args *args, int64_t width) {
    for (int64_t i = 0; i < args->n_pos * width; i++) ((float *)args->out)[i] = NAN;
}

float fd_fault_to_f16(float x) {
    return fd_f16_to_f32(fd_f32_to_f16(x));
}

float fd_fault_to_bf16(float x) {
    return fd_bf16_to_f32(fd_f32_to_bf16(x));
}
