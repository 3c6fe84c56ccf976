/* Making and ending an emulating executor. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "emulate/internal.h"
#include "model/gguf/quant.h"

static void reset(fd_exec *exec) {
    fd_emulate *e = (fd_emulate *)exec;
    for (int32_t i = 0; i < exec->graph->n_node; i++)
        if (e->rows[i]) /* between passes only caches are there; a fault may read rows that nothing wrote */
            memset(e->rows[i], 0,
                   sizeof(float) * (size_t)exec->n_ctx * (size_t)fd_node_row_stride(&exec->graph->nodes[i], 1));
}

static void destroy(fd_exec *exec) {
    fd_emulate *e = (fd_emulate *)exec;
    for (int32_t i = 0; e->rows && i < exec->graph->n_node; i++) free(e->rows[i]);
    for (int32_t i = 0; i < e->n_angles; i++) {
        free(e->angles[i].cos);
        free(e->angles[i].sin);
    }
    free(e->rows);
    free(e->last_reader);
    free(e->angles);
    free(e->angles_of);
    free(e->left.data);
    free(e->right.data);
    free(e->thread.data);
    free(e);
}

static const fd_exec_class emulate_class = {fd_emulate_forward, reset, destroy};

static fd_code check(const fd_graph *graph, const fd_emulate_options *options, fd_error *err) {
    if (options->n_ctx < 1)
        return fd_fail(err, FD_ERR_INPUT, "context: %d positions, expected at least 1", options->n_ctx);
    if (options->n_thread < 0) return fd_fail(err, FD_ERR_INPUT, "threads: %d, expected 0 or more", options->n_thread);
    FD_TRY(fd_exec_check_graph(graph, err));
    return fd_exec_check_weights(graph, err);
}

/* Layers mostly turn by the same angles. */
static fd_code find_angles(fd_emulate *e, const fd_node *node, int32_t *out, fd_error *err) {
    for (*out = 0; *out < e->n_angles; ++*out)
        if (fd_rope_same_table(e->angles[*out].node, node)) return FD_OK;
    return fd_emulate_angles_make(e, node, &e->angles[e->n_angles++], err);
}

static fd_code prepare(fd_emulate *e, fd_error *err) {
    const fd_graph *graph = e->exec.graph;
    size_t n = (size_t)graph->n_node;
    e->rows = calloc(n, sizeof *e->rows);
    e->last_reader = calloc(n, sizeof *e->last_reader);
    e->angles = calloc(n, sizeof *e->angles);
    e->angles_of = calloc(n, sizeof *e->angles_of);
    if (!e->rows || !e->last_reader || !e->angles || !e->angles_of)
        return fd_fail(err, FD_ERR_MEMORY, "emulation: out of memory for %zu nodes", n);
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        e->last_reader[i] = -1;
        e->angles_of[i] = -1;
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (node->input[k] >= 0) e->last_reader[node->input[k]] = i;
        if (node->op == FD_OP_ROPE) FD_TRY(find_angles(e, node, &e->angles_of[i], err));
        if (node->op != FD_OP_KV_WRITE) continue;
        e->rows[i] = calloc((size_t)e->exec.n_ctx, sizeof(float) * (size_t)fd_node_row_stride(node, 1));
        if (!e->rows[i])
            return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory for %d positions", node->name, e->exec.n_ctx);
    }
    return FD_OK;
}

fd_code fd_emulate_new(const fd_graph *graph, const fd_emulate_options *options, fd_exec **out, fd_error *err) {
    static const char *const kv_names[] = {
        [FD_EMULATE_F32] = "f32", [FD_EMULATE_F16] = "f16", [FD_EMULATE_BF16] = "bf16"};
    *out = NULL;
    FD_TRY(check(graph, options, err));
    fd_emulate *e = calloc(1, sizeof *e);
    if (!e) return fd_fail(err, FD_ERR_MEMORY, "emulation: out of memory");
    e->class_ = *options->class_;
    e->n_thread = options->n_thread ? options->n_thread : omp_get_max_threads();
    snprintf(e->name, sizeof e->name, "emulate-%s", options->class_->name);
    if (options->seed) {
        size_t at = strlen(e->name);
        snprintf(e->name + at, sizeof e->name - at, ":%llu", (unsigned long long)options->seed);
    }
    e->exec = (fd_exec){.class_ = &emulate_class,
                        .graph = graph,
                        .numerics = FD_NUMERICS_FAST,
                        .numerics_name = e->name,
                        .kv_type = kv_names[options->class_->cache],
                        .backend = "cpu",
                        .n_ctx = options->n_ctx};
    snprintf(e->exec.device, sizeof e->exec.device, "emulation (%s)", options->class_->summary);
    for (uint32_t batch = 0; batch < 2; batch++)
        for (uint32_t op = 0; op < FD_OP_COUNT; op++)
            e->order[batch][op] = fd_emulate_order_pick(options->seed, batch * FD_OP_COUNT + op);
    fd_code code = prepare(e, err);
    if (code != FD_OK) {
        destroy(&e->exec);
        return code;
    }
    *out = &e->exec;
    return FD_OK;
}
