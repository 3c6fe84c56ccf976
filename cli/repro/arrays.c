/* One row an op: which part of its inputs the tested elements need, and the formula in two languages. */
#include <stdlib.h>
#include <string.h>

#include "cli/repro/internal.h"
#include "model/weight_rows.h"

static const fd_weight *weight_of(const fd_repro *r, int which) {
    int32_t at = r->node->weight[which];
    return at >= 0 ? &r->graph->weights[at] : NULL;
}

/* The tested elements stay within one part of `width` elements: the worst one's. */
static void keep_part(fd_repro *r, int64_t width) {
    const fd_measured_values *m = &r->verdict->measures.nodes[r->node->id].values;
    int64_t begin = m->worst / width * width, end = begin + width, last = r->first + r->n;
    if (r->first < begin) r->first = begin;
    if (last > end) last = end;
    r->n = last - r->first;
    r->head = begin / width;
    r->offset = r->first - begin;
}

/* Rows [first, first + n_row) of a weight; n_row 0: row 0 as a vector. */
static fd_code put_weight(const fd_repro *r, const char *name, const fd_weight *w, int64_t first, int64_t n_row,
                          fd_error *err) {
    int64_t rows = n_row ? n_row : 1, bytes = fd_dtype_row_bytes(w->dtype, w->n_col);
    double *wide = malloc(sizeof *wide * (size_t)(rows * w->n_col));
    float *row = malloc(sizeof *row * (size_t)w->n_col);
    fd_code code = wide && row ? FD_OK : fd_fail(err, FD_ERR_MEMORY, "--repro: out of memory");
    for (int64_t k = 0; code == FD_OK && k < rows; k++) {
        fd_dequantize_row(w->dtype, (const char *)w->data + (first + k) * bytes, row, w->n_col);
        for (int64_t i = 0; i < w->n_col; i++) wide[k * w->n_col + i] = (double)row[i];
    }
    if (code == FD_OK) code = fd_repro_put_array(r, name, wide, n_row, w->n_col, false, err);
    free(wide);
    free(row);
    return code;
}

static fd_code write_matmul(fd_repro *r, fd_error *err) {
    const fd_weight *w = weight_of(r, 0), *bias = weight_of(r, 1);
    double b[FD_MEASURE_VALUES] = {0};
    for (int64_t i = 0; i < r->n && bias; i++) b[i] = (double)fd_weight_element(bias, r->first + i);
    fd_repro_add_size(r, "N_IN", (double)w->n_col);
    FD_TRY(fd_repro_put_array(r, "x", r->in[0], 0, w->n_col, false, err));
    FD_TRY(fd_repro_put_array(r, "bias", b, 0, r->n, false, err));
    return put_weight(r, "w", w, r->first, r->n, err);
}

static fd_code write_rms_norm(fd_repro *r, fd_error *err) {
    const fd_weight *w = weight_of(r, 0);
    keep_part(r, w->n_col);
    fd_repro_add_size(r, "N_IN", (double)w->n_col);
    fd_repro_add_size(r, "EPS", (double)r->node->eps);
    FD_TRY(fd_repro_put_array(r, "x", r->in[0] + r->head * w->n_col, 0, w->n_col, false, err));
    return put_weight(r, "w", w, 0, 0, err);
}

static fd_code write_rope(fd_repro *r, fd_error *err) {
    int32_t width = r->node->shape[1], half = r->node->rope.n_rot / 2;
    double *table = malloc(2 * sizeof *table * (size_t)half);
    if (!table) return fd_fail(err, FD_ERR_MEMORY, "--repro: out of memory");
    fd_rope_table_f64(&r->node->rope, weight_of(r, 0), r->pos, 1, table, table + half);
    keep_part(r, width);
    fd_repro_add_size(r, "N_IN", width);
    fd_repro_add_size(r, "HALF", half);
    fd_repro_add_size(r, "INTERLEAVED", r->node->rope.pairing == FD_ROPE_INTERLEAVED);
    fd_code code = fd_repro_put_array(r, "x", r->in[0] + r->head * width, 0, width, false, err);
    if (code == FD_OK) code = fd_repro_put_array(r, "cosine", table, 0, half, true, err);
    if (code == FD_OK) code = fd_repro_put_array(r, "sine", table + half, 0, half, true, err);
    free(table);
    return code;
}

/* Element by element. */
static fd_code write_two(fd_repro *r, fd_error *err) {
    FD_TRY(fd_repro_put_array(r, "a", r->in[0] + r->first, 0, r->n, false, err));
    return fd_repro_put_array(r, "b", r->in[1] + r->first, 0, r->n, false, err);
}

/* Columns [from, from + n) of head `head` of a cache's rows [first, first + n_row). */
static fd_code put_cache(const fd_repro *r, const char *name, int64_t first, int64_t n_row, int64_t from, int64_t n,
                         fd_error *err) {
    const fd_node *cache = &r->graph->nodes[r->node->input[1]];
    int32_t n_head = r->graph->nodes[r->node->id].shape[0];
    int64_t kv_head = r->head / (n_head / cache->shape[0]), width = fd_node_width(cache);
    double *part = malloc(sizeof *part * (size_t)(n_row * n));
    if (!part) return fd_fail(err, FD_ERR_MEMORY, "--repro: out of memory");
    for (int64_t k = 0; k < n_row; k++)
        memcpy(part + k * n, r->in[1] + (first + k) * width + kv_head * cache->shape[1] + from,
               sizeof *part * (size_t)n);
    fd_code code = fd_repro_put_array(r, name, part, n_row, n, false, err);
    free(part);
    return code;
}

/* A window or a softcap is another formula. */
static fd_code write_scores(fd_repro *r, fd_error *err) {
    int32_t head_dim = r->graph->nodes[r->node->input[1]].shape[1];
    if (r->node->window > 0 || r->node->softcap > 0)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "--repro: no test is written for %s with a window or a softcap",
                       r->node->name);
    keep_part(r, r->pos + 1);
    fd_repro_add_size(r, "N_IN", head_dim);
    fd_repro_add_size(r, "SCALE", (double)r->node->scale);
    FD_TRY(fd_repro_put_array(r, "q", r->in[0] + r->head * head_dim, 0, head_dim, false, err));
    return put_cache(r, "k", r->offset, r->n, 0, head_dim, err);
}

static fd_code write_softmax(fd_repro *r, fd_error *err) {
    const fd_weight *sinks = weight_of(r, 0);
    keep_part(r, r->pos + 1);
    double sink = sinks ? (double)fd_weight_element(sinks, r->head) : -1e30;
    fd_repro_add_size(r, "N_IN", r->pos + 1);
    fd_repro_add_size(r, "SINK", sink);
    return fd_repro_put_array(r, "x", r->in[0] + r->head * (r->pos + 1), 0, r->pos + 1, false, err);
}

static fd_code write_mix(fd_repro *r, fd_error *err) {
    keep_part(r, r->node->shape[1]);
    fd_repro_add_size(r, "N_IN", r->pos + 1);
    FD_TRY(fd_repro_put_array(r, "p", r->in[0] + r->head * (r->pos + 1), 0, r->pos + 1, false, err));
    return put_cache(r, "v", 0, r->pos + 1, r->offset, r->n, err);
}

/* y holds the tested elements. Where the op computes a whole part, FIRST is where they begin in it. */
static const fd_repro_op ops[] = {
    {FD_OP_MATMUL, write_matmul, "    y = load(\"w\") @ load(\"x\") + load(\"bias\")\n",
     "    for (int i = 0; i < N; i++) {\n        double sum = bias[i];\n"
     "        for (int k = 0; k < N_IN; k++) sum += (double)w[i * N_IN + k] * x[k];\n        y[i] = sum;\n    }\n",
     "w x bias"},
    {FD_OP_RMS_NORM, write_rms_norm,
     "    x = load(\"x\")\n    y = (x / np.sqrt((x * x).mean() + EPS) * load(\"w\"))[FIRST : FIRST + N]\n",
     "    double mean = 0;\n    for (int k = 0; k < N_IN; k++) mean += (double)x[k] * x[k] / N_IN;\n"
     "    for (int i = 0; i < N; i++) y[i] = x[FIRST + i] / sqrt(mean + EPS) * w[FIRST + i];\n",
     "x w"},
    {FD_OP_ROPE, write_rope,
     "    x, c, s = load(\"x\"), load(\"cosine\"), load(\"sine\")\n"
     "    i = np.arange(HALF)\n"
     "    one, two = (2 * i, 2 * i + 1) if INTERLEAVED else (i, i + HALF)\n"
     "    y = x.copy()\n    y[one], y[two] = x[one] * c - x[two] * s, x[one] * s + x[two] * c\n"
     "    y = y[FIRST : FIRST + N]\n",
     "    double all[N_IN];\n    for (int k = 0; k < N_IN; k++) all[k] = x[k];\n"
     "    for (int i = 0; i < HALF; i++) {\n"
     "        int one = INTERLEAVED ? 2 * i : i, two = INTERLEAVED ? 2 * i + 1 : i + HALF;\n"
     "        all[one] = x[one] * cosine[i] - x[two] * sine[i];\n"
     "        all[two] = x[one] * sine[i] + x[two] * cosine[i];\n    }\n"
     "    for (int i = 0; i < N; i++) y[i] = all[FIRST + i];\n",
     "x cosine sine"},
    {FD_OP_ADD, write_two, "    y = load(\"a\") + load(\"b\")\n",
     "    for (int i = 0; i < N; i++) y[i] = (double)a[i] + b[i];\n", "a b"},
    {FD_OP_SILU_MUL, write_two, "    a = load(\"a\")\n    y = a / (1 + np.exp(-a)) * load(\"b\")\n",
     "    for (int i = 0; i < N; i++) y[i] = a[i] / (1 + exp(-(double)a[i])) * b[i];\n", "a b"},
    {FD_OP_GELU_MUL, write_two,
     "    a = load(\"a\")\n"
     "    y = 0.5 * a * (1 + np.tanh(np.sqrt(2 / np.pi) * (a + 0.044715 * a**3))) * load(\"b\")\n",
     "    for (int i = 0; i < N; i++) {\n        double g = a[i];\n"
     "        y[i] = 0.5 * g * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g))) * b[i];\n    "
     "}\n",
     "a b"},
    {FD_OP_ATTN_SCORES, write_scores, "    y = load(\"k\") @ load(\"q\") * SCALE\n",
     "    for (int i = 0; i < N; i++) {\n        double sum = 0;\n"
     "        for (int d = 0; d < N_IN; d++) sum += (double)q[d] * k[i * N_IN + d];\n        y[i] = sum * SCALE;\n    "
     "}\n",
     "q k"},
    {FD_OP_ATTN_SOFTMAX, write_softmax,
     "    x = load(\"x\")\n    m = max(x.max(), SINK)\n    e = np.exp(x - m)\n"
     "    y = (e / (e.sum() + np.exp(SINK - m)))[FIRST : FIRST + N]\n",
     "    double m = SINK, sum = 0;\n    for (int k = 0; k < N_IN; k++) m = x[k] > m ? x[k] : m;\n"
     "    for (int k = 0; k < N_IN; k++) sum += exp(x[k] - m);\n    sum += exp(SINK - m);\n"
     "    for (int i = 0; i < N; i++) y[i] = exp(x[FIRST + i] - m) / sum;\n",
     "x"},
    {FD_OP_ATTN_MIX, write_mix, "    y = load(\"p\") @ load(\"v\")\n",
     "    for (int i = 0; i < N; i++) {\n        y[i] = 0;\n"
     "        for (int t = 0; t < N_IN; t++) y[i] += (double)p[t] * v[t * N + i];\n    }\n",
     "p v"},
};

const fd_repro_op *fd_repro_op_of(fd_op op) {
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ops[i].op == op) return &ops[i];
    return NULL;
}

fd_code fd_repro_write_arrays(fd_repro *repro, fd_error *err) {
    const fd_repro_op *op = fd_repro_op_of(repro->node->op);
    if (!op)
        return fd_fail(err, FD_ERR_UNSUPPORTED, "--repro: no test is written for the op %s of %s",
                       fd_op_name(repro->node->op), repro->node->name);
    FD_TRY(op->write(repro, err));
    fd_repro_add_size(repro, "N", (double)repro->n);
    fd_repro_add_size(repro, "FIRST", (double)repro->offset);
    return FD_OK;
}
