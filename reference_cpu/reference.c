#include "reference_cpu/reference.h"

#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference_cpu/executor.h"

/* Positions of a long prompt that run together: enough to read the weights seldom, few enough for the caches. */
enum { PASS_POSITIONS = 128 };

/* ---- forward ---- */

static const char *input_rows(const fd_reference *ref, const fd_ref_task *task, int i, int32_t n_pos) {
    const fd_ref_buffers *b = &ref->buffers;
    int32_t id = task->args.node->input[i];
    const char *rows = fd_ref_rows_of(b, id);
    const fd_node *input = &b->graph->nodes[id];
    bool last_of_all = task->rows == FD_REF_LAST_ROW && ref->tasks[id].rows == FD_REF_ALL_ROWS;
    if (input->op == FD_OP_KV_WRITE || !last_of_all) return rows;
    return rows + (size_t)((n_pos - 1) * fd_node_row_stride(input, task->args.n_kv)) * b->real_size;
}

/* `tail`: the rows of nodes that feed no cache. */
static void prepare(fd_reference *ref, const int32_t *tokens, int32_t pos0, int32_t n_pos, fd_ref_rows tail) {
    const fd_ref_buffers *b = &ref->buffers;
    for (int32_t i = 0; i < b->graph->n_node; i++) {
        fd_ref_task *task = &ref->tasks[i];
        const fd_node *node = &b->graph->nodes[i];
        task->rows = b->feeds_cache[i] ? FD_REF_ALL_ROWS : tail;
        if (task->rows == FD_REF_NO_ROW) continue;
        int32_t skip = task->rows == FD_REF_LAST_ROW ? n_pos - 1 : 0;
        fd_op_args *args = &task->args;
        *args = (fd_op_args){.graph = b->graph,
                             .node = node,
                             .pos0 = pos0 + skip,
                             .n_pos = n_pos - skip,
                             .n_kv = pos0 + n_pos,
                             .tokens = tokens + skip,
                             .out = fd_ref_rows_of(b, i),
                             .n_ctx = b->n_ctx};
        for (int k = 0; k < FD_MAX_INPUTS; k++)
            if (node->input[k] >= 0) args->in[k] = input_rows(ref, task, k, n_pos);
        for (int k = 0; k < FD_MAX_WEIGHTS; k++)
            if (node->weight[k] >= 0) args->weight[k] = &b->graph->weights[node->weight[k]];
        if (b->rope_of[i] >= 0) {
            args->rope_cos = b->ropes[b->rope_of[i]].cos.data;
            args->rope_sin = b->ropes[b->rope_of[i]].sin.data;
        }
        fd_ref_cut(task, ref->n_thread, ref->peers);
    }
}

/* The last n_row rows of the last node, rounded to binary32. */
static void copy_logits(const fd_reference *ref, int64_t n_row, float *to) {
    const fd_ref_task *last = &ref->tasks[ref->exec.graph->n_node - 1];
    int64_t width = fd_node_width(last->args.node), skip = (last->args.n_pos - n_row) * width;
    if (ref->exec.numerics == FD_NUMERICS_F64)
        for (int64_t i = 0; i < n_row * width; i++) to[i] = (float)((const double *)last->args.out)[skip + i];
    else
        memcpy(to, (const float *)last->args.out + skip, sizeof *to * (size_t)(n_row * width));
}

static void note_written(fd_reference *ref, int32_t n_kv) {
    int64_t used = (int64_t)n_kv + ref->write_ahead;
    if (used > ref->exec.n_ctx) used = ref->exec.n_ctx;
    if (used > ref->buffers.n_used) ref->buffers.n_used = (int32_t)used;
}

static fd_code forward(fd_exec *exec, const fd_batch *batch, fd_error *err) {
    fd_reference *ref = (fd_reference *)exec;
    int64_t n_vocab = exec->graph->hparams.n_vocab;
    bool all = batch->all_logits || exec->observer.observe;
    int32_t longest = ref->may_split && !exec->observer.observe ? PASS_POSITIONS : batch->n_tok;
    ref->buffers.sequence = exec->sequence;

    for (int32_t done = 0, n; done < batch->n_tok; done += n) {
        n = batch->n_tok - done < longest ? batch->n_tok - done : longest;
        int32_t pos0 = batch->pos0 + done;
        bool wanted = batch->logits && (batch->all_logits || done + n == batch->n_tok);
        fd_ref_rows tail = all ? FD_REF_ALL_ROWS : wanted ? FD_REF_LAST_ROW : FD_REF_NO_ROW;
        FD_TRY(fd_ref_buffers_reserve(&ref->buffers, n, pos0 + n, err));
        prepare(ref, batch->tokens + done, pos0, n, tail);
        note_written(ref, pos0 + n);
        FD_TRY(fd_ref_run(ref, err));
        if (wanted)
            copy_logits(ref, batch->all_logits ? n : 1, batch->logits + (batch->all_logits ? done * n_vocab : 0));
    }
    return FD_OK;
}

static void reset(fd_exec *exec) {
    fd_ref_buffers_reset(&((fd_reference *)exec)->buffers);
}

static void destroy(fd_exec *exec) {
    fd_reference *ref = (fd_reference *)exec;
    fd_ref_buffers_free(&ref->buffers);
    free(ref->tasks);
    free(ref);
}

static const fd_exec_class reference_class = {forward, reset, destroy};

/* ---- making one ---- */

static fd_code check_graph(const fd_graph *graph, fd_numerics numerics, fd_error *err) {
    FD_TRY(fd_exec_check_graph(graph, err));
    FD_TRY(fd_exec_check_weights(graph, err));
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].override && numerics == FD_NUMERICS_F64)
            return fd_fail(err, FD_ERR_UNSUPPORTED, "node %s: its fault is written for binary32, not for f64",
                           graph->nodes[i].name);
    return FD_OK;
}

static void name_device(char *to, size_t size) {
    char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    snprintf(to, size, "CPU");
    while (file && fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(to, size, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (file) fclose(file);
}

fd_code fd_reference_new(const fd_graph *graph, const fd_reference_options *options, fd_exec **out, fd_error *err) {
    fd_isa isa;
    *out = NULL;
    if (options->numerics == FD_NUMERICS_FAST)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "numerics %s: the CPU reference computes exact, q8act or f64",
                       fd_numerics_name(options->numerics));
    if (options->n_ctx < 1)
        return fd_fail(err, FD_ERR_INPUT, "context: %d positions, expected at least 1", options->n_ctx);
    if (options->n_seq < 0) return fd_fail(err, FD_ERR_INPUT, "sequences: %d, expected 0 or more", options->n_seq);
    if (options->n_thread < 0) return fd_fail(err, FD_ERR_INPUT, "threads: %d, expected 0 or more", options->n_thread);
    FD_TRY(fd_isa_wanted(&isa, err));
    FD_TRY(check_graph(graph, options->numerics, err));

    fd_reference *ref = calloc(1, sizeof *ref);
    if (!ref) return fd_fail(err, FD_ERR_MEMORY, "executor: out of memory");
    ref->exec = (fd_exec){.class_ = &reference_class,
                          .graph = graph,
                          .numerics = options->numerics,
                          .backend = "cpu",
                          .n_ctx = options->n_ctx,
                          .n_seq = options->n_seq > 1 ? options->n_seq : 1};
    name_device(ref->exec.device, sizeof ref->exec.device);
    ref->ops = fd_ref_select(options->numerics, isa, options->scalar);
    ref->n_thread = options->n_thread ? options->n_thread : omp_get_max_threads();
    ref->peers = options->peers;
    ref->may_split = true;
    for (int32_t i = 0; i < graph->n_node; i++) {
        const fd_node *node = &graph->nodes[i];
        if (node->override || node->row_offset != 0) ref->may_split = false;
        if (node->row_offset > ref->write_ahead) ref->write_ahead = node->row_offset;
    }
    ref->tasks = calloc((size_t)graph->n_node, sizeof *ref->tasks);
    fd_code code = fd_ref_buffers_make(&ref->buffers, graph, options->numerics, options->n_ctx, ref->exec.n_seq, err);
    if (code == FD_OK && !ref->tasks) code = fd_fail(err, FD_ERR_MEMORY, "executor: out of memory");
    if (code != FD_OK) {
        destroy(&ref->exec);
        return code;
    }
    *out = &ref->exec;
    return FD_OK;
}
