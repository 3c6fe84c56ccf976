/* The table of faults, and how one is put into a graph. */
#include "faults/internal.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const fd_fault_family *const families[] = {
    &fd_rope_layout_faults, &fd_rope_faults,      &fd_norm_faults,    &fd_norm_rows_faults, &fd_loader_faults,
    &fd_block_faults,       &fd_packing_faults,   &fd_group_faults,   &fd_half_faults,      &fd_embed_faults,
    &fd_matmul_faults,      &fd_attention_faults, &fd_softmax_faults, &fd_tile_faults,      &fd_cache_faults,
    &fd_activation_faults,  &fd_ffn_faults,       &fd_moe_faults,     &fd_output_faults,    &fd_numerics_faults,
    &fd_rank_faults,        &fd_recurrent_faults, &fd_ssm_faults,     &fd_router_faults,    &fd_gate_up_faults,
    &fd_fused_faults,       &fd_past_faults,
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

/* *changed: the node is another one now, or reads another weight. `explains`: nothing is injected. */
static fd_code edit_node(const fd_fault *fault, bool explains, fd_fault_site *site, bool *changed) {
    fd_node *node = site->node, before = *node;
    *changed = false;
    const bool of_table = explains && fault->of_table && node->op == FD_OP_EMBED;
    if (fault->op != FD_OP_COUNT && node->op != fault->op && !of_table) return FD_OK;
    if (fault->nodes && !fd_fault_is_one_of(node, fault->nodes)) return FD_OK;
    if (fault->info.outside && node->layer >= 0) return FD_OK;
    if (fault->applies && !fault->applies(site->graph, node)) return FD_OK;
    if (fault->edit)
        fault->edit(site);
    else
        node->override = fault->override;
    *changed = site->replaced || memcmp(&before, node, sizeof before) != 0;
    return site->code;
}

/* Gives the graph the weight that a node of it reads now. */
static fd_code add_weight(fd_graph *graph, const fd_fault_site *site, fd_error *err) {
    fd_weight *grown = realloc(graph->weights, sizeof *grown * (size_t)(graph->n_weight + 1));
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    graph->weights = grown;
    grown[graph->n_weight] = site->weight;
    site->node->weight[0] = graph->n_weight++;
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
        bool changed;
        fd_fault_site site = {.graph = graph, .node = &graph->nodes[i], .owner = own, .err = err};
        code = edit_node(fault, false, &site, &changed);
        if (code == FD_OK && site.replaced) code = add_weight(graph, &site, err);
        n_changed += changed;
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

fd_code fd_fault_edit_node(int32_t i, const fd_graph *graph, const fd_node *node, fd_faulty_node *out, fd_error *err) {
    bool changed;
    *out = (fd_faulty_node){.node = *node};
    FD_TRY(new_owner(&out->owner, err));
    fd_fault_site site = {.graph = graph, .node = &out->node, .owner = out->owner, .err = err};
    fd_code code = edit_node(row(i), true, &site, &changed);
    if (code != FD_OK || !changed) fd_faulty_node_free(out);
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (out->node.weight[k] >= 0) out->weight[k] = graph->weights[out->node.weight[k]];
    out->replaced = site.replaced;
    if (site.replaced) out->weight[0] = site.weight;
    return code;
}

void fd_faulty_node_free(fd_faulty_node *faulty) {
    fd_fault_owner_free(faulty->owner);
    faulty->owner = NULL;
}

void fd_fault_owner_free(fd_fault_owner *owner) {
    if (!owner) return;
    for (int32_t i = 0; i < owner->n_block; i++) free(owner->blocks[i]);
    free(owner->blocks);
    free(owner);
}
