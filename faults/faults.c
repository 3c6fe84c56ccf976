#include "faults/internal.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

static const fd_fault_family *const families[] = {
    &fd_rope_faults,      &fd_norm_faults,  &fd_loader_faults, &fd_block_faults, &fd_embed_faults,  &fd_matmul_faults,
    &fd_attention_faults, &fd_cache_faults, &fd_ffn_faults,    &fd_moe_faults,   &fd_output_faults,
    &fd_numerics_faults,
};
enum { N_FAMILY = sizeof families / sizeof *families };

static const fd_fault *row(int32_t i) {
    for (int f = 0; f < N_FAMILY; f++) {
        if (i < families[f]->n_row) return &families[f]->rows[i];
        i -= families[f]->n_row;
    }
    return NULL;
}

int32_t fd_fault_count(void) {
    int32_t n = 0;
    for (int f = 0; f < N_FAMILY; f++) n += families[f]->n_row;
    return n;
}

const fd_fault_info *fd_fault_at(int32_t i) {
    return &row(i)->info;
}

static int32_t find(const char *name, size_t size) {
    for (int32_t i = 0; i < fd_fault_count(); i++)
        if (strlen(row(i)->info.name) == size && memcmp(row(i)->info.name, name, size) == 0) return i;
    return -1;
}

int32_t fd_fault_find(const char *name) {
    return find(name, strlen(name));
}

/* As many of the known names as a message holds. */
static fd_code unknown(const char *spec, size_t size, fd_error *err) {
    char known[860] = "";
    size_t at = 0;
    for (int32_t i = 0; i < fd_fault_count(); i++) {
        const char *name = row(i)->info.name;
        bool fits = at + strlen(name) + 8 < sizeof known;
        at += (size_t)snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", fits ? name : "…");
        if (!fits) break;
    }
    return fd_fail(err, FD_ERR_INPUT, "fault \"%.*s\": unknown; known: %s", size > 64 ? 64 : (int)size, spec, known);
}

/* -1 for "every layer". */
static fd_code parse_layer(const char *at, const fd_graph *graph, const fd_fault_info *info, int32_t *layer,
                           fd_error *err) {
    *layer = -1;
    if (!at) return FD_OK;
    if (info->outside)
        return fd_fail(err, FD_ERR_INPUT, "fault %s: %s is outside the layers, found \"%s\", expected no layer",
                       info->name, info->located, at);
    char *end;
    errno = 0;
    long value = strtol(at + 1, &end, 10);
    if (end == at + 1 || *end != '\0' || errno || value < 0 || value >= graph->hparams.n_layer)
        return fd_fail(err, FD_ERR_INPUT, "fault layer \"%s\": expected 0 to %d", at + 1, graph->hparams.n_layer - 1);
    *layer = (int32_t)value;
    return FD_OK;
}

static fd_code edit_node(const fd_fault *fault, fd_fault_site *site, fd_error *err) {
    fd_node *node = site->node;
    if (fault->op != FD_OP_COUNT && node->op != fault->op) return FD_OK;
    if (fault->nodes && !fd_fault_is_one_of(node, fault->nodes)) return FD_OK;
    if (fault->info.outside && node->layer >= 0) return FD_OK;
    if (fault->applies && !fault->applies(site->graph, node)) return FD_OK;
    if (fault->edit) return fault->edit(site, err);
    node->override = fault->override;
    site->changed = true;
    return FD_OK;
}

static fd_code new_owner(fd_fault_owner **owner, fd_error *err) {
    *owner = calloc(1, sizeof **owner);
    return *owner ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "out of memory");
}

fd_code fd_fault_apply(const char *spec, fd_graph *graph, fd_fault_owner **owner, fd_error *err) {
    *owner = NULL;
    const char *at = strchr(spec, '@');
    size_t size = at ? (size_t)(at - spec) : strlen(spec);
    int32_t found = find(spec, size), layer, n_changed = 0;
    if (found < 0) return unknown(spec, size, err);
    const fd_fault *fault = row(found);
    FD_TRY(parse_layer(at, graph, &fault->info, &layer, err));

    fd_fault_owner *own;
    FD_TRY(new_owner(&own, err));
    fd_code code = FD_OK;
    for (int32_t i = 0; i < graph->n_node && code == FD_OK; i++) {
        if (layer >= 0 && graph->nodes[i].layer != layer) continue;
        fd_fault_site site = {graph, &graph->nodes[i], own, false};
        code = edit_node(fault, &site, err);
        n_changed += site.changed;
    }
    if (code == FD_OK && n_changed == 0)
        code = fd_fail(err, FD_ERR_INPUT, "fault %s: this model has nothing that it could change%s (%s)",
                       fault->info.name, layer >= 0 ? " in that layer" : "", fault->info.summary);
    if (code != FD_OK) {
        fd_fault_owner_free(own);
        return code;
    }
    *owner = own;
    return FD_OK;
}

fd_code fd_fault_apply_node(int32_t i, fd_graph *graph, int32_t node, bool *changed, fd_fault_owner **owner,
                            fd_error *err) {
    fd_fault_owner *own;
    *owner = NULL;
    *changed = false;
    FD_TRY(new_owner(&own, err));
    fd_fault_site site = {graph, &graph->nodes[node], own, false};
    fd_code code = edit_node(row(i), &site, err);
    *changed = code == FD_OK && site.changed;
    if (*changed)
        *owner = own;
    else
        fd_fault_owner_free(own);
    return code;
}

void fd_fault_owner_free(fd_fault_owner *owner) {
    if (!owner) return;
    for (int32_t i = 0; i < owner->n_block; i++) free(owner->blocks[i]);
    free(owner->blocks);
    free(owner);
}

/* ---- what edits share ---- */

const fd_weight *fd_fault_weight(const fd_graph *graph, const fd_node *node, int slot) {
    return node->weight[slot] < 0 ? NULL : &graph->weights[node->weight[slot]];
}

fd_code fd_fault_new_weight(fd_fault_site *site, int slot, uint32_t dtype, uint64_t bytes, void **data, fd_error *err) {
    fd_graph *graph = site->graph;
    fd_fault_owner *owner = site->owner;
    *data = NULL;
    fd_weight *weights = realloc(graph->weights, sizeof *weights * (size_t)(graph->n_weight + 1));
    if (weights) graph->weights = weights;
    void **blocks = realloc(owner->blocks, sizeof *blocks * (size_t)(owner->n_block + 1));
    if (blocks) owner->blocks = blocks;
    void *block = weights && blocks ? calloc(1, (size_t)bytes) : NULL;
    if (!block)
        return fd_fail(err, FD_ERR_MEMORY, "out of memory for a faulty weight of %llu bytes",
                       (unsigned long long)bytes);
    owner->blocks[owner->n_block++] = block;
    fd_weight weight = graph->weights[site->node->weight[slot]];
    weight.dtype = dtype;
    weight.bytes = bytes;
    weight.data = block;
    graph->weights[graph->n_weight] = weight;
    site->node->weight[slot] = graph->n_weight++;
    site->changed = true;
    *data = block;
    return FD_OK;
}

/* "blk.3.attn_q" → "attn_q". */
static const char *suffix_of(const fd_node *node) {
    if (node->layer < 0) return node->name;
    const char *dot = strchr(node->name, '.');
    dot = dot ? strchr(dot + 1, '.') : NULL;
    return dot ? dot + 1 : node->name;
}

bool fd_fault_is_one_of(const fd_node *node, const char *words) {
    const char *suffix = suffix_of(node);
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
        if (graph->nodes[i].layer == node->layer && strcmp(suffix_of(&graph->nodes[i]), suffix) == 0) return i;
    return -1;
}

int64_t fd_fault_width(const fd_node *node) {
    return (int64_t)node->shape[0] * (node->n_dim == 2 ? node->shape[1] : 1);
}

void fd_fault_copy(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_fault_width(args->node); i++)
        ((float *)args->out)[i] = ((const float *)args->in[0])[i];
}

float *fd_fault_row(const fd_weight *weight, int64_t r) {
    float *values = malloc(sizeof *values * (size_t)weight->n_col);
    int64_t row_bytes = fd_dtype_row_bytes(weight->dtype, weight->n_col);
    if (values) fd_dequantize_row(weight->dtype, (const char *)weight->data + r * row_bytes, values, weight->n_col);
    return values;
}

void fd_fault_nan(const fd_op_args *args, int64_t width) {
    for (int64_t i = 0; i < args->n_pos * width; i++) ((float *)args->out)[i] = NAN;
}
