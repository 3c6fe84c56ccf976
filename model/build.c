/* From a file to a graph: the architecture by its name, its hyperparameters, its nodes, then the validator. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/builder.h"

static void note_unused(fd_builder *b) {
    for (size_t i = 0; i < fd_gguf_n_tensor(b->gguf); i++)
        if (!b->used[i] && !fd_builder_append(&b->report->unused, &b->report->n_unused, sizeof *b->report->unused,
                                              fd_gguf_tensor_at(b->gguf, i)->name))
            fd_builder_set_error(b, fd_fail(b->err, FD_ERR_MEMORY, "out of memory"));
}

static fd_code missing_error(const fd_builder *b) {
    const fd_weight_report *r = b->report;
    char more[48] = "";
    if (r->n_missing > 1) snprintf(more, sizeof more, " (and %d more weights)", r->n_missing - 1);
    return fd_fail(b->err, FD_ERR_INPUT, "weight %s: missing, the %s graph needs it%s", r->missing[0].name, b->h->arch,
                   more);
}

/* Files of NVFP4 may hold a factor of each matrix beside it. */
static fd_code check_scales(const fd_builder *b) {
    static const char suffix[] = ".scale";
    for (size_t i = 0; i < fd_gguf_n_tensor(b->gguf); i++) {
        const char *name = fd_gguf_tensor_at(b->gguf, i)->name;
        const size_t size = strlen(name);
        if (b->used[i] || size < sizeof suffix || strcmp(name + size - (sizeof suffix - 1), suffix) != 0) continue;
        return fd_fail(b->err, FD_ERR_UNSUPPORTED, "weight %s: a factor, which the %s graph does not apply", name,
                       b->h->arch);
    }
    return FD_OK;
}

/* Of a hybrid's few layers none may be one that attends; llama.cpp ends there. */
static fd_code check_attention(const fd_builder *b, const fd_arch *arch) {
    for (int32_t i = 0; i < b->graph->n_node; i++)
        if (b->graph->nodes[i].op == FD_OP_ATTN_SCORES) return FD_OK;
    if (arch->reads & FD_READS_NO_ATTENTION) return FD_OK;
    return fd_fail(b->err, FD_ERR_INPUT, "key %s.block_count: of %d layers none attends", arch->name, b->h->n_layer);
}

/* `with` not NULL: of metadata alone; the graph then lacks its weights. */
static fd_code build(const fd_gguf *gguf, const char *with, fd_graph **out, fd_weight_report *report, fd_error *err) {
    *out = NULL;
    fd_weight_report own_report = {0};
    if (report) memset(report, 0, sizeof *report);
    fd_string name;
    FD_TRY(fd_gguf_get_string(gguf, "general.architecture", &name, err));
    if (!name.data) return fd_fail(err, FD_ERR_INPUT, "key general.architecture: missing");
    char known[1024];
    const fd_arch *arch = fd_arch_find(name, known, sizeof known);
    if (!arch)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "architecture \"%.*s\" is not implemented; known: %s",
                       (int)(name.size < 64 ? name.size : 64), name.data, known);

    fd_keys keys;
    FD_TRY(fd_keys_make(&keys, gguf, arch->name, err));
    fd_builder b = {.gguf = gguf, .keys = &keys, .report = report ? report : &own_report, .err = err};
    b.with = with ? with : "";
    b.graph = calloc(1, sizeof *b.graph);
    b.used = calloc(fd_gguf_n_tensor(gguf) + 1, sizeof *b.used);
    if (!b.graph || !b.used) fd_builder_set_error(&b, fd_fail(err, FD_ERR_MEMORY, "out of memory"));
    if (b.code == FD_OK) fd_builder_set_error(&b, fd_hparams_read(&keys, arch, &b.graph->hparams));
    if (b.code == FD_OK) {
        b.h = &b.graph->hparams;
        arch->list(&b);
        if (b.code == FD_OK) fd_builder_set_error(&b, fd_keys_check(&keys, b.graph));
        if (b.code == FD_OK) fd_builder_set_error(&b, check_attention(&b, arch));
        if (b.code == FD_OK) fd_builder_set_error(&b, check_scales(&b));
        if (b.code == FD_OK) fd_graph_set_context(b.graph, 1);
        if (b.code == FD_OK) note_unused(&b);
        if (b.code == FD_OK && !with && b.report->n_missing > 0) fd_builder_set_error(&b, missing_error(&b));
        if (b.code == FD_OK && !with) fd_builder_set_error(&b, fd_graph_validate(b.graph, err));
    }
    free(b.used);
    fd_keys_free(&keys);
    fd_weight_report_free(&own_report);
    if (b.code != FD_OK) {
        fd_graph_free(b.graph);
        return b.code;
    }
    *out = b.graph;
    return FD_OK;
}

fd_code fd_graph_build(const fd_gguf *gguf, fd_graph **out, fd_weight_report *report, fd_error *err) {
    return build(gguf, NULL, out, report, err);
}

fd_code fd_graph_weights(const fd_gguf *metadata, const char *with, fd_weight_report *report, fd_error *err) {
    fd_graph *graph;
    fd_code code = build(metadata, with, &graph, report, err);
    if (code == FD_OK) fd_graph_free(graph);
    return code;
}

void fd_weight_report_free(fd_weight_report *report) {
    free(report->missing);
    free(report->unused);
    memset(report, 0, sizeof *report);
}
