#include "compare/attribute/own_values.h"

#include <stdlib.h>

#include "compare/replay/replay.h"

enum { RANGE = 64 }; /* positions at once: each weight is read once for all of them */

typedef struct own_values {
    const fd_graph *graph;
    const fd_trace *trace;
    fd_replay *replay;
    fd_trace_writer *to;
} own_values;

/* In contract order what an op gives is binary32, so that nothing is lost. */
static fd_code write_node(const own_values *o, const fd_node *node, int32_t pos0, int32_t n_pos, fd_error *err) {
    const fd_observer writer = fd_trace_observer(o->to);
    fd_replayed rows;
    FD_TRY(fd_replay_node(o->replay, node->id, true, &rows, err));
    float *narrow = malloc(sizeof *narrow * (size_t)(n_pos * rows.stride + 1));
    if (!narrow) return fd_fail(err, FD_ERR_MEMORY, "%s: own values: out of memory", node->name);
    for (int64_t i = 0; i < n_pos * rows.stride; i++) narrow[i] = (float)rows.y[i];
    const fd_observation shown = {.graph = o->graph,
                                  .node = node,
                                  .pos0 = pos0,
                                  .n_pos = n_pos,
                                  .row_stride = rows.stride,
                                  .dtype = FD_F32,
                                  .data = narrow};
    const fd_code code = writer.observe(writer.user, &shown, err);
    free(narrow);
    return code;
}

static fd_code write_positions(const own_values *o, fd_error *err) {
    const int32_t end = fd_trace_n_pos(o->trace), *tokens = fd_trace_tokens(o->trace);
    for (int32_t pos0 = 0; pos0 < end; pos0 += RANGE) {
        const int32_t n_pos = end - pos0 < RANGE ? end - pos0 : RANGE;
        FD_TRY(fd_replay_range(o->replay, pos0, n_pos, err));
        FD_TRY(fd_trace_begin_step(o->to, FD_STEP_PREFILL, tokens + pos0, n_pos, pos0, err));
        for (int32_t i = 0; i < o->graph->n_node; i++) FD_TRY(write_node(o, &o->graph->nodes[i], pos0, n_pos, err));
        FD_TRY(fd_trace_end_step(o->to, err));
    }
    return FD_OK;
}

fd_code fd_replay_own_values(const fd_graph *graph, const fd_trace *trace, fd_op_fn op, const char *path,
                             fd_error *err) {
    own_values o = {.graph = graph, .trace = trace};
    const fd_replay_options how = {.graph = graph,
                                   .trace = trace,
                                   .tokens = fd_trace_tokens(trace),
                                   .op = op,
                                   .numerics = fd_numerics_class_find("exact"),
                                   .n_output = 1};
    const fd_trace_options options = fd_trace_defaults(path);
    const fd_trace_info info = {.producer = "firstdiff"};
    FD_TRY(fd_replay_open(&how, &o.replay, err));
    fd_code code = fd_trace_create(&options, &info, graph, FD_NUMERICS_EXACT, &o.to, err);
    if (code == FD_OK) {
        code = write_positions(&o, err);
        if (code == FD_OK)
            code = fd_trace_finish(o.to, err);
        else
            fd_trace_abandon(o.to);
    }
    fd_replay_close(o.replay);
    return code;
}
