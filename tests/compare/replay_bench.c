#include "tests/compare/replay_bench.h"
#include "tests/scratch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "compare/compare.h"
#include "emulate/rounding.h"
#include "numerics/contract.h"
#include "reference_cpu/reference.h"

static const int32_t fed[N_PREFILL + N_DECODE] = {1, 300, 45, 1036, 261, 7, 512, 88};

/* A dump that records something else than the engine uses. */
typedef struct misrecorder {
    fd_observer to;
    void (*change)(const fd_observation *seen, float *rows);
} misrecorder;

static fd_code observe_changed(void *user, const fd_observation *seen, fd_error *err) {
    const misrecorder *m = user;
    size_t n = (size_t)(seen->n_pos * seen->row_stride);
    float *rows = malloc(sizeof *rows * n);
    fd_observation changed = *seen;
    cr_assert(rows && seen->data && seen->dtype == FD_F32);
    memcpy(rows, seen->data, sizeof *rows * n);
    m->change(seen, rows);
    changed.data = rows;
    changed.fingerprints = NULL;
    changed.stats = NULL;
    fd_code code = m->to.observe(m->to.user, &changed, err);
    free(rows);
    return code;
}

fd_trace *record(const fd_graph *graph, recording how) {
    cr_assert(graph, "nothing to record");
    char path[SCRATCH_PATH];
    fd_error err = {0};
    fd_trace_writer *writer;
    fd_trace *trace;
    fd_exec *exec;
    int file = mkstemp(scratch_path(path, "firstdiff-replay-XXXXXX"));
    cr_assert(file >= 0);
    close(file);
    fd_trace_options to = fd_trace_defaults(path);
    if (how.store) to.store = how.store;
    to.level = how.fingerprints_only ? FD_TRACE_FINGERPRINT : FD_TRACE_FULL;
    to.tensors = how.tensors;
    to.step_first = how.step_first;
    to.weights = how.weights;
    fd_trace_info info = {.contract = how.emulated ? 0 : FD_CONTRACT_VERSION, .level = to.level};
    fd_numerics own = how.q8act ? FD_NUMERICS_Q8ACT : FD_NUMERICS_EXACT;
    const char *truth = how.emulated ? how.emulated : fd_numerics_name(own);
    snprintf(info.numerics, sizeof info.numerics, "%s", how.numerics ? how.numerics : truth);
    const int32_t *tokens = how.tokens ? how.tokens : fed;
    int32_t n_prompt = how.n_prompt ? how.n_prompt : N_PREFILL, n_step = how.n_prompt ? 1 : 1 + N_DECODE;
    if (how.one_by_one) n_prompt = 1, n_step = N_PREFILL + N_DECODE;
    const int32_t n_first = how.first_chunk ? how.first_chunk : n_prompt;
    n_step += how.first_chunk > 0;
    if (how.emulated) {
        fd_emulate_options o = {.class_ = fd_emulate_class_find(how.emulated), .seed = 3, .n_ctx = 16, .n_thread = 1};
        cr_assert(o.class_);
        must(fd_emulate_new(graph, &o, &exec, &err), &err);
    } else {
        fd_reference_options o = {.numerics = own, .n_ctx = 16, .n_thread = 1};
        must(fd_reference_new(graph, &o, &exec, &err), &err);
    }
    must(fd_trace_create(&to, &info, graph, FD_NUMERICS_EXACT, &writer, &err), &err);
    misrecorder changed = {fd_trace_observer(writer), how.misrecord};
    fd_exec_set_observer(exec,
                         how.misrecord ? (fd_observer){.observe = observe_changed, .user = &changed} : changed.to);
    for (int32_t s = 0, pos = 0; s < n_step; s++) {
        int32_t n = s == 0 ? n_first : pos < n_prompt ? n_prompt - pos : 1;
        fd_batch batch = {.tokens = tokens + pos, .n_tok = n, .pos0 = pos};
        must(fd_trace_begin_step(writer, pos < n_prompt ? FD_STEP_PREFILL : FD_STEP_DECODE, batch.tokens, n, pos, &err),
             &err);
        must(fd_exec_forward(exec, &batch, &err), &err);
        must(fd_trace_end_step(writer, &err), &err);
        pos += n;
    }
    must(fd_trace_finish(writer, &err), &err);
    fd_exec_free(exec);
    must(fd_trace_open(path, &trace, &err), &err);
    unlink(path);
    return trace;
}

typedef struct reported {
    const char *what;
    int64_t done, total;
} reported;

static void expect_progress(void *user, const char *what, int64_t done, int64_t total) {
    reported *last = user;
    bool same = last->what && strcmp(last->what, what) == 0;
    cr_assert(done > 0 && done <= total && (!same || total == last->total));
    *last = (reported){what, done, total};
}

fd_verdict judge(const fd_graph *graph, const fd_trace *ref, fd_trace *cand, const char *class_name) {
    static const char *const all[] = {"*"};
    fd_compare_options how = {.graph = graph, .allow_missing = all, .n_allow_missing = 1};
    reported last = {0};
    fd_compare_model_options replay = {.graph = graph,
                                       .ref = ref,
                                       .cand = cand,
                                       .op = fd_reference_op,
                                       .progress = expect_progress,
                                       .progress_user = &last};
    fd_verdict v;
    fd_error err = {0};
    if (class_name) replay.numerics = fd_numerics_class_find(class_name);
    must(fd_compare_traces(ref, cand, &how, &v, &err), &err);
    must(fd_compare_with_model(&replay, &v, &err), &err);
    if (v.status == FD_NOISE) cr_expect_eq(last.done, last.total, "both traces are judged to their ends");
    fd_trace_close(cand);
    return v;
}

bench open_bench(const char *model, recording ref) {
    bench b = open_model(model);
    b.ref = record(b.graph, ref);
    return b;
}

fd_verdict judged(const bench *b, const fd_graph *graph, recording how) {
    return judge(b->graph, b->ref, record(graph, how), NULL);
}

void expect_noise(fd_verdict v, const char *model, const char *what) {
    cr_expect_eq(v.status, FD_NOISE, "%s %s: %s at %s, class %s (%s), z %g", model, what,
                 fd_verdict_status_name(v.status), v.divergence.node, v.replay.numerics, v.replay.source, v.replay.z);
    cr_expect_eq(fd_verdict_exit_status(&v), 0);
    cr_expect_eq(v.divergence.kind, FD_NO_DIVERGENCE);
    cr_expect_eq(v.replay.n_introduced, 0);
    cr_expect(!v.diagnosis.done && !v.diagnosis.explanation.named);
    cr_expect(v.replay.n_tensor > 0 && v.replay.noisiest_z <= 1);
    fd_verdict_free(&v);
}

void expect_at(fd_verdict *v, const char *node, const char *what) {
    cr_expect_eq(v->status, FD_DIVERGED, "%s: %s", what, fd_verdict_status_name(v->status));
    cr_expect_str_eq(v->divergence.node, node, "%s: found at %s, expected %s", what, v->divergence.node, node);
    cr_expect(!(v->replay.z <= 1), "%s", what);
    if (v->replay.shares_known) cr_expect_float_eq(v->replay.introduced + v->replay.propagated, 1, 1e-12, "%s", what);
}

void run_clean(const fd_op_args *args) {
    fd_node node = *args->node;
    fd_op_args clean = *args;
    node.override = NULL;
    clean.node = &node;
    fd_reference_op(FD_NUMERICS_EXACT, &clean);
}

float *copy_input(const fd_op_args *args, int slot, int64_t n) {
    float *rows = malloc(sizeof *rows * (size_t)n);
    cr_assert(rows);
    memcpy(rows, args->in[slot], sizeof *rows * (size_t)n);
    return rows;
}

void run_with(const fd_op_args *args, int slot, float *rows) {
    fd_op_args own = *args;
    own.in[slot] = rows;
    run_clean(&own);
    free(rows);
}

void third_head_scaled(const fd_op_args *args) {
    run_clean(args);
    int64_t d = args->node->shape[1], n = (int64_t)args->node->shape[0] * d;
    for (int64_t r = 0; r < args->n_pos; r++)
        for (int64_t i = 3 * d; i < 4 * d; i++) ((float *)args->out)[r * n + i] *= 1.01f;
}

void rounded_to_f16(const fd_op_args *args) {
    run_clean(args);
    int64_t n = args->n_pos * fd_node_row_stride(args->node, args->n_kv);
    for (int64_t i = 0; i < n; i++) ((float *)args->out)[i] = fd_round_f16(((float *)args->out)[i]);
}

fd_graph *graph_copy(const bench *b) {
    fd_graph *graph;
    fd_error err = {0};
    cr_assert_eq(fd_graph_clone(b->graph, &graph, &err), FD_OK, "%s", err.message);
    return graph;
}

fd_graph *spoiled_everywhere(const bench *b, const char *suffix, fd_override_fn how) {
    fd_graph *graph = graph_copy(b);
    for (int32_t i = 0; i < graph->n_node; i++) {
        const char *dot = strrchr(graph->nodes[i].name, '.');
        if (dot && strcmp(dot + 1, suffix) == 0) graph->nodes[i].override = how;
    }
    return graph;
}

void in_int8_with_a_given_scale(const fd_op_args *args) {
    const int64_t n = args->n_pos * fd_node_width(args->node);
    float *rows = (float *)args->out + args->pos0 * fd_node_width(args->node);
    const float scale = strstr(args->node->name, "cache_v") ? 0.015f : 0.09f; /* of the largest of each, over 127 */
    run_clean(args);
    for (int64_t i = 0; i < n; i++) rows[i] = fminf(fmaxf(rintf(rows[i] / scale), -127), 127) * scale;
}
