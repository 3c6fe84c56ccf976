#include "faults/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static fd_code rope_pairing(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed, fd_error *err) {
    (void)graph, (void)owner, (void)err;
    if (node->op != FD_OP_ROPE) return FD_OK;
    node->rope.pairing = node->rope.pairing == FD_ROPE_HALF ? FD_ROPE_INTERLEAVED : FD_ROPE_HALF;
    ++*n_changed;
    return FD_OK;
}

static fd_code eps_outside_root(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed,
                                fd_error *err) {
    (void)graph, (void)owner, (void)err;
    if (node->op != FD_OP_RMS_NORM) return FD_OK;
    node->override = fd_fault_norm_eps_outside;
    ++*n_changed;
    return FD_OK;
}

static bool ends_with(const char *name, const char *suffix) {
    size_t n = strlen(name), m = strlen(suffix);
    return n >= m && strcmp(name + n - m, suffix) == 0;
}

static fd_code missing_qkv_bias(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed,
                                fd_error *err) {
    (void)graph, (void)owner, (void)err;
    bool qkv = ends_with(node->name, ".attn_q") || ends_with(node->name, ".attn_k") || ends_with(node->name, ".attn_v");
    if (node->op != FD_OP_MATMUL || !qkv || node->weight[1] < 0) return FD_OK;
    node->weight[1] = -1;
    ++*n_changed;
    return FD_OK;
}

static fd_code kv_off_by_one(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed, fd_error *err) {
    (void)graph, (void)owner, (void)err;
    if (node->op != FD_OP_KV_WRITE) return FD_OK;
    node->row_offset = 1;
    ++*n_changed;
    return FD_OK;
}

static fd_code softmax_all_masked(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed,
                                  fd_error *err) {
    (void)graph, (void)owner, (void)err;
    if (node->op != FD_OP_ATTN_SOFTMAX) return FD_OK;
    node->override = fd_fault_softmax_all_masked;
    ++*n_changed;
    return FD_OK;
}

static fd_code q0_only(fd_graph *graph, fd_node *node, fd_fault_owner *owner, int32_t *n_changed, fd_error *err) {
    (void)graph, (void)owner, (void)err;
    if (node->op != FD_OP_ATTN_SCORES) return FD_OK;
    node->override = fd_fault_scores_q0_only;
    ++*n_changed;
    return FD_OK;
}

static const fd_fault table[] = {
    {{"rope_pairing", "rope", "RoPE rotates the other pairs: halves for neighbours or neighbours for halves", "attn_q_rope"},
     rope_pairing},
    {{"eps_outside_root", "norm", "RMSNorm divides by sqrt(mean) + eps, not by sqrt(mean + eps)", "attn_norm"},
     eps_outside_root},
    {{"weight_in_out", "loader", "matrices are read as [in, out] where the file has [out, in]", "attn_q"},
     fd_fault_weight_in_out},
    {{"bytes_read_short", "loader", "numel / 2 bytes of each matrix are read, the rest stays zero", "attn_q"},
     fd_fault_bytes_short},
    {{"missing_qkv_bias", "matmul", "the Q, K and V biases are not added", "attn_q"}, missing_qkv_bias},
    {{"kv_off_by_one", "kv_cache", "K and V rows are written one position too far", "cache_k"}, kv_off_by_one},
    {{"softmax_all_masked", "attention", "the mask hides a token from itself, so the first row is all masked", "attn_weights"},
     softmax_all_masked},
    {{"q0_only", "attention", "of each query head only element 0 is loaded", "attn_scores"}, q0_only},
};

int32_t fd_fault_count(void) { return (int32_t)(sizeof table / sizeof *table); }
const fd_fault_info *fd_fault_at(int32_t i) { return &table[i].info; }

static const fd_fault *find(const char *name, size_t size) {
    for (int32_t i = 0; i < fd_fault_count(); i++)
        if (strlen(table[i].info.name) == size && memcmp(table[i].info.name, name, size) == 0) return &table[i];
    return NULL;
}

static fd_code unknown(const char *spec, size_t size, fd_error *err) {
    char known[512] = "";
    for (int32_t i = 0, at = 0; i < fd_fault_count(); i++)
        at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", i ? ", " : "", table[i].info.name);
    return fd_fail(err, FD_ERR_INPUT, "fault \"%.*s\": unknown; known: %s", (int)size, spec, known);
}

/* -1 for "every layer". */
static fd_code parse_layer(const char *at, const fd_graph *graph, int32_t *layer, fd_error *err) {
    *layer = -1;
    if (!at) return FD_OK;
    char *end;
    errno = 0;
    long value = strtol(at + 1, &end, 10);
    if (end == at + 1 || *end != '\0' || errno || value < 0 || value >= graph->hparams.n_layer)
        return fd_fail(err, FD_ERR_INPUT, "fault layer \"%s\": expected 0 to %d", at + 1, graph->hparams.n_layer - 1);
    *layer = (int32_t)value;
    return FD_OK;
}

fd_code fd_fault_apply(const char *spec, fd_graph *graph, fd_fault_owner **owner, fd_error *err) {
    *owner = NULL;
    const char *at = strchr(spec, '@');
    size_t size = at ? (size_t)(at - spec) : strlen(spec);
    const fd_fault *fault = find(spec, size);
    if (!fault) return unknown(spec, size, err);
    int32_t layer, n_changed = 0;
    FD_TRY(parse_layer(at, graph, &layer, err));

    fd_fault_owner *own = calloc(1, sizeof *own);
    if (!own) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    fd_code code = FD_OK;
    for (int32_t i = 0; i < graph->n_node && code == FD_OK; i++)
        if (layer < 0 || graph->nodes[i].layer == layer)
            code = fault->edit(graph, &graph->nodes[i], own, &n_changed, err);
    if (code == FD_OK && n_changed == 0)
        code = fd_fail(err, FD_ERR_INPUT, "fault %s: this model has nothing that it could change (%s)", fault->info.name,
                       fault->info.summary);
    if (code != FD_OK) {
        fd_fault_owner_free(own);
        return code;
    }
    *owner = own;
    return FD_OK;
}

void fd_fault_owner_free(fd_fault_owner *owner) {
    if (!owner) return;
    for (int32_t i = 0; i < owner->n_block; i++) free(owner->blocks[i]);
    free(owner->blocks);
    free(owner);
}
