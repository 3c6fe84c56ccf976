#include "tests/compare/fake_run.h"

#include <criterion/criterion.h>
#include <hdf5.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/gguf/quant.h"
#include "tests/common.h"
#include "tests/graph/small_model.h"
#include "tests/scratch.h"

typedef struct fake {
    fd_exec base;
    fake_options options;
    double *rows; /* one node's rows, as binary64 */
    float *narrow;
} fake;

const fd_graph *fake_graph(void) {
    static fd_graph *graph; /* tests only: one process runs one test */
    fd_error err = {0};
    if (graph) return graph;
    small_model_options options = {.arch = "llama"};
    must(fd_graph_build(small_model(&options), &graph, NULL, &err), &err);
    return graph;
}

int32_t fake_token(int32_t pos) {
    return (pos * 7 + 3) % 32;
}

static float element(const fd_node *node, int32_t pos, int32_t token, int64_t i) {
    uint64_t key = (uint64_t)node->id << 48 ^ (uint64_t)pos << 36 ^ (uint64_t)token << 28 ^ (uint64_t)i;
    return (float)(fd_mix64(key + 1) % 20001) * 1e-4f - 1.0f;
}

/* Row r of the node, in place in `row` with a head's stride of `width`. */
static void fill_row(const fake *f, const fd_node *node, int32_t pos, int32_t token, int32_t batch_kv, double *row) {
    int64_t n = fd_node_elements(node, pos + 1), own = node->over_kv ? pos + 1 : n,
            width = node->over_kv ? batch_kv : n;
    for (int64_t i = 0; i < fd_node_row_stride(node, batch_kv); i++) {
        int64_t at = i / width * own + i % width;
        bool padding = node->over_kv && i % width >= own;
        double fill = node->op == FD_OP_ATTN_SCORES ? -INFINITY : 0;
        row[i] = padding ? fill : (double)element(node, pos, token, at) + (f->options.f64 ? f->options.f64_offset : 0);
    }
    for (size_t k = 0; k < sizeof f->options.edits / sizeof *f->options.edits; k++) {
        const fake_edit *e = &f->options.edits[k];
        if (!e->node || strcmp(e->node, node->name) != 0 || (e->pos >= 0 && e->pos != pos)) continue;
        int64_t at = e->index / own * width + e->index % own;
        if (e->change == FAKE_ULP) row[at] = (double)nextafterf((float)row[at], row[at] < 0 ? -INFINITY : INFINITY);
        if (e->change == FAKE_SET) row[at] = (double)e->value;
        for (int64_t i = 0; e->change == FAKE_SWAP_HEADS && i < node->shape[1]; i++) {
            double x = row[i];
            row[i] = row[node->shape[1] + i];
            row[node->shape[1] + i] = x;
        }
    }
}

static fd_code show(fake *f, const fd_batch *batch, const fd_node *node, fd_error *err) {
    int32_t n_kv = batch->pos0 + batch->n_tok;
    int64_t stride = fd_node_row_stride(node, n_kv), n = stride * batch->n_tok;
    f->rows = realloc(f->rows, sizeof *f->rows * (size_t)n);
    f->narrow = realloc(f->narrow, sizeof *f->narrow * (size_t)n);
    for (int32_t r = 0; r < batch->n_tok; r++)
        fill_row(f, node, batch->pos0 + r, batch->tokens[r], n_kv, f->rows + r * stride);
    for (int64_t i = 0; i < n; i++) f->narrow[i] = (float)f->rows[i];
    if (strcmp(node->name, "logits") == 0 && batch->logits)
        memcpy(batch->logits, f->narrow + (batch->all_logits ? 0 : n - stride),
               sizeof(float) * (size_t)(batch->all_logits ? n : stride));
    if (!f->base.observer.observe || (f->options.skip_node && strcmp(f->options.skip_node, node->name) == 0))
        return FD_OK;
    fd_observation shown = {.graph = f->base.graph,
                            .node = node,
                            .step = f->base.step,
                            .pos0 = batch->pos0,
                            .n_pos = batch->n_tok,
                            .row_stride = stride,
                            .dtype = f->options.f64 ? FD_F64 : FD_F32,
                            .data = f->options.f64 ? (const void *)f->rows : f->narrow};
    return f->base.observer.observe(f->base.observer.user, &shown, err);
}

static fd_code forward(fd_exec *exec, const fd_batch *batch, fd_error *err) {
    fake *f = (fake *)exec;
    for (int32_t i = 0; i < exec->graph->n_node; i++) {
        const fd_node *node = &exec->graph->nodes[i];
        if (f->options.fail_node && exec->step == f->options.fail_step && strcmp(f->options.fail_node, node->name) == 0)
            return fd_fail(err, FD_ERR_DEVICE, "%s: the fake device fell over", node->name);
        FD_TRY(show(f, batch, node, err));
    }
    return FD_OK;
}

static void destroy(fd_exec *exec) {
    fake *f = (fake *)exec;
    free(f->rows);
    free(f->narrow);
    free(f);
}

fd_exec *fake_exec(const fake_options *options) {
    static const fd_exec_class class_ = {forward, NULL, destroy};
    fake *f = calloc(1, sizeof *f);
    f->base = (fd_exec){.class_ = &class_,
                        .graph = fake_graph(),
                        .numerics = options->f64 ? FD_NUMERICS_F64 : FD_NUMERICS_EXACT,
                        .backend = "cpu",
                        .n_ctx = 256};
    f->options = *options;
    return &f->base;
}

static void temporary_path(char path[SCRATCH_PATH]) {
    int file = mkstemp(scratch_path(path, "firstdiff-fake-XXXXXX"));
    if (file < 0) abort();
    close(file);
}

static void record(const fake_trace_options *o, fd_exec *exec, fd_trace_writer *writer, fd_error *err) {
    int32_t n_prompt = o->n_prompt ? o->n_prompt : 5, n_step = 1 + (o->n_decode < 0 ? 0
                                                                    : o->n_decode   ? o->n_decode
                                                                                    : 3);
    int32_t tokens[64];
    for (int32_t p = 0; p < 64; p++) tokens[p] = o->token_at > 0 && p == o->token_at ? o->token : fake_token(p);
    fd_exec_set_observer(exec, fd_trace_observer(writer));
    for (int32_t s = 0, pos = 0; s < n_step; s++) {
        int32_t n = s == 0 ? n_prompt : 1;
        float logits[32];
        fd_batch batch = {.tokens = tokens + pos, .n_tok = n, .pos0 = pos, .logits = logits};
        must(fd_trace_begin_step(writer, s ? FD_STEP_DECODE : FD_STEP_PREFILL, batch.tokens, n, pos, err), err);
        must(fd_exec_forward(exec, &batch, err), err);
        must(fd_trace_end_step(writer, err), err);
        pos += n;
        if (s + 1 == o->abandon_after) {
            fd_trace_abandon(writer);
            return;
        }
    }
    must(fd_trace_finish(writer, err), err);
}

fd_trace *fake_trace(const fake_trace_options *o) {
    char path[SCRATCH_PATH];
    fd_error err = {0};
    fd_trace_writer *writer;
    fd_trace *trace;
    temporary_path(path);
    fd_trace_options to = fd_trace_defaults(path);
    to.level = o->level;
    to.tensors = o->tensors;
    fd_trace_info info = {.prompt = (char *)(uintptr_t)o->prompt,
                          .contract = o->contract                 ? o->contract
                                      : o->run.f64 || o->numerics ? 0
                                                                  : FD_CONTRACT_VERSION,
                          .level = o->level};
    const char *numerics = o->numerics ? o->numerics : o->run.f64 ? "f64" : "exact";
    snprintf(info.numerics, sizeof info.numerics, "%s", numerics);
    snprintf(info.arch, sizeof info.arch, "%s", o->arch ? o->arch : "llama");
    snprintf(info.model_hash, sizeof info.model_hash, "%s", o->model_hash ? o->model_hash : "xxh3-128:00000000");
    fd_exec *exec = fake_exec(&o->run);
    must(fd_trace_create(&to, &info, exec->graph, exec->numerics, &writer, &err), &err);
    record(o, exec, writer, &err);
    fd_exec_free(exec);
    must(fd_trace_open(path, &trace, &err), &err);
    unlink(path);
    return trace;
}

/* ---- foreign traces, straight through HDF5 ---- */

static void put_text(hid_t at, const char *name, const char *text) {
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    H5Tset_size(type, strlen(text) + 1);
    hid_t attribute = H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, type, text);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
}

static void put_int(hid_t at, const char *name, int value) {
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t attribute = H5Acreate2(at, name, H5T_NATIVE_INT, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_INT, &value);
    H5Aclose(attribute);
    H5Sclose(space);
}

static void put_tensor(hid_t file, const char *name, uint32_t dtype, const float *values, int32_t n_pos, int32_t n) {
    hsize_t dims[2] = {(hsize_t)n_pos, (hsize_t)n};
    hid_t stored = dtype == FD_F32 ? H5T_NATIVE_FLOAT : H5T_NATIVE_UINT16;
    hid_t group = H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT),
          space = H5Screate_simple(2, dims, NULL);
    hid_t set = H5Dcreate2(group, name, stored, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    uint16_t *halves = malloc(sizeof *halves * (size_t)(n_pos * n));
    for (int32_t i = 0; i < n_pos * n; i++)
        halves[i] = dtype == FD_F16 ? fd_f32_to_f16(values[i]) : fd_f32_to_bf16(values[i]);
    H5Dwrite(set, stored, H5S_ALL, H5S_ALL, H5P_DEFAULT, dtype == FD_F32 ? (const void *)values : halves);
    if (dtype != FD_F32) put_text(set, "dtype", dtype == FD_F16 ? "F16" : "BF16");
    free(halves);
    H5Dclose(set);
    H5Sclose(space);
    H5Gclose(group);
}

fd_trace *foreign_trace(const char *name, uint32_t dtype, const float *values, int32_t n_pos, int32_t n) {
    char path[SCRATCH_PATH];
    fd_error err = {0};
    fd_trace *trace;
    int32_t tokens[64];
    temporary_path(path);
    for (int32_t p = 0; p < n_pos; p++) tokens[p] = fake_token(p);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    put_text(file, "schema", "firstdiff-trace");
    put_int(file, "version", 1);
    hsize_t length = (hsize_t)n_pos;
    hid_t space = H5Screate_simple(1, &length, NULL);
    hid_t set = H5Dcreate2(file, "tokens", H5T_NATIVE_INT32, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens);
    H5Dclose(set);
    H5Sclose(space);
    put_tensor(file, name, dtype, values, n_pos, n);
    H5Fclose(file);
    must(fd_trace_open(path, &trace, &err), &err);
    unlink(path);
    return trace;
}

fd_verdict fake_compare(fd_trace *ref, fd_trace *cand, const char *allow) {
    fd_compare_options options = {.allow_missing = &allow, .n_allow_missing = allow ? 1 : 0};
    fd_error err = {0};
    fd_verdict v;
    cr_assert_eq(fd_compare_traces(ref, cand, &options, &v, &err), FD_OK, "%s", err.message);
    fd_trace_close(ref);
    fd_trace_close(cand);
    return v;
}

fd_verdict fake_against_clean(fd_trace_level level, const fake_trace_options *cand) {
    fake_trace_options clean = {.level = level};
    return fake_compare(fake_trace(&clean), fake_trace(cand), NULL);
}
