#include "model/gguf_writer/made_model.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"
#include "model/gguf_writer/made_keys.h"
#include "model/gguf_writer/random_weights.h"

/* Tensors by their names without "blk.N."; the first row that fits counts. deviation 0: 1/sqrt(inputs). */
static const struct {
    const char *name;
    float mean, deviation;
    bool f32; /* whatever the matrices are; vectors are F32 anyway */
} kinds[] = {
    {"*_norm*.weight", 1.0f, 0.1f, true},
    {"rope_f*", 1.0f, 0.1f, true},
    {"layer_output_scale.weight", 1.0f, 0.1f, true},
    {"ffn_gate_inp.scale", 8.0f, 1.0f, true},
    {"ffn_down_exps.scale", 1.0f, 0.1f, true},
    {"exp_probs_b.bias", 0.0f, 0.1f, true},
    {"attn_sinks.weight", 0.0f, 1.0f, true},
    {"ssm_a", -1.0f, 0.25f, true}, /* minus a positive number */
    {"ssm_d", 1.0f, 0.1f, true},
    {"ssm_conv1d.weight", 0.0f, 0.0f, true},
    {"time_mix_lerp_fused.weight", 0.5f, 0.2f, true},
    {"channel_mix_lerp_k.weight", 0.5f, 0.2f, true},
    {"time_mix_ln.weight", 1.0f, 0.1f, true},
    {"time_mix_k_[ak].weight", 1.0f, 0.1f, true},
    {"time_mix_[wav]0.weight", 0.0f, 1.0f, true},
    {"time_mix_r_k.weight", 0.0f, 0.5f, true},
    {"*.bias", 0.0f, 0.5f, true},
    {"ffn_gate_inp*.weight", 0.0f, 0.0f, true},
    {"position_embd.weight", 0.0f, 0.0f, true},
    {"*", 0.0f, 0.0f, false},
};

static const struct {
    uint32_t dtype, smaller;
} fallbacks[] = {{FD_Q4_K, FD_Q5_0}, {FD_Q5_K, FD_Q5_1}, {FD_Q6_K, FD_Q8_0}};

bool fd_can_make(uint32_t dtype) {
    const fd_dtype_info *info = fd_dtype_get(dtype);
    return info && fd_can_dequantize(dtype) && (fd_can_quantize(dtype) || info->is_quantised);
}

static bool fits(uint32_t dtype, int64_t n) {
    return n % fd_dtype_get(dtype)->block_elements == 0;
}

static uint32_t type_for_rows(uint32_t dtype, int64_t n) {
    if (fits(dtype, n)) return dtype;
    uint32_t smaller = FD_IQ4_NL;
    for (size_t i = 0; i < sizeof fallbacks / sizeof *fallbacks; i++)
        if (fallbacks[i].dtype == dtype) smaller = fallbacks[i].smaller;
    return fits(smaller, n) ? smaller : FD_F16;
}

/* Which matrices Q4_K_M keeps in Q6_K: the output's, and V and down of the first and last eighth of the layers and of
 * every third between. */
static bool has_more_bits(const char *name, int layer, int n_layer, bool tied) {
    if (layer < 0) return strcmp(name, tied ? "token_embd.weight" : "output.weight") == 0;
    if (!strstr(name, "attn_v.") && !strstr(name, "ffn_down")) return false;
    return layer < n_layer / 8 || layer >= 7 * n_layer / 8 || (layer - n_layer / 8) % 3 == 2;
}

typedef struct maker {
    const fd_made_model *what;
    fd_gguf_writer *writer;
    random_weights *weights; /* one a tensor, borrowed by the writer until the file is written */
    int32_t n, n_layer;
    bool tied;
    fd_error *err;
} maker;

static fd_code put_weight(maker *m, const fd_missing_weight *t) {
    int layer = -1, skipped = 0;
    sscanf(t->name, "blk.%d.%n", &layer, &skipped);
    const char *name = t->name + skipped;
    size_t kind = 0;
    while (fnmatch(kinds[kind].name, name, 0) != 0) kind++;
    uint32_t dtype = m->what->dtype;
    if (m->what->mixed && has_more_bits(name, layer, m->n_layer, m->tied)) dtype = FD_Q6_K;
    dtype = t->n_dim == 1 || kinds[kind].f32 ? FD_F32 : type_for_rows(dtype, t->shape[0]);
    const float deviation = kinds[kind].deviation > 0.0f ? kinds[kind].deviation : 1.0f / sqrtf((float)t->shape[0]);
    random_weights *w = &m->weights[m->n++];
    *w = (random_weights){dtype, t->shape[0], random_stream(m->what->seed, t->name), kinds[kind].mean, deviation};
    return fd_gguf_put_tensor(m->writer, t->name, dtype, t->n_dim, t->shape, NULL, random_weights_fill, w, m->err);
}

/* What the graph of these keys asks for. */
static fd_code list_weights(maker *m, const fd_arch *arch, fd_weight_report *report, int64_t *n_vocab) {
    char with[2048], name[128];
    void *data;
    size_t size;
    fd_gguf *gguf;
    int64_t n_layer = 0;
    snprintf(with, sizeof with, "%s %s %s", m->tied ? "" : "output.weight", arch->made_with ? arch->made_with : "",
             m->what->with ? m->what->with : "");
    fd_code code = fd_gguf_header(m->writer, &data, &size, m->err);
    if (code == FD_OK && (code = fd_gguf_parse(data, size, &gguf, m->err)) == FD_OK) {
        code = fd_graph_weights(gguf, with, report, m->err);
        snprintf(name, sizeof name, "%s.vocab_size", arch->name);
        if (code == FD_OK) code = fd_gguf_get_i64(gguf, name, 0, n_vocab, m->err);
        snprintf(name, sizeof name, "%s.block_count", arch->name);
        if (code == FD_OK) code = fd_gguf_get_i64(gguf, name, 0, &n_layer, m->err);
        m->n_layer = (int32_t)n_layer;
        fd_gguf_close(gguf);
    }
    free(data);
    return code;
}

static fd_code collect(maker *m) {
    char known[1024];
    const char *asked = m->what->arch;
    const fd_arch *arch = fd_arch_find((fd_string){asked, strlen(asked)}, known, sizeof known);
    if (!arch)
        return fd_fail(m->err, FD_ERR_UNSUPPORTED, "architecture \"%s\" is not implemented; known: %s", asked, known);
    if (m->what->tied && arch->made_untied)
        return fd_fail(m->err, FD_ERR_INPUT, "tied: a file of %s has an output.weight of its own", arch->name);
    fd_weight_report report = {0};
    int64_t n_vocab = 0;
    m->tied = m->what->tied || arch->made_tied;
    fd_code code = fd_gguf_writer_new(&m->writer, m->err);
    if (code == FD_OK) code = fd_made_keys(m->what, arch, m->writer, m->err);
    if (code == FD_OK) code = list_weights(m, arch, &report, &n_vocab);
    if (code == FD_OK) code = fd_made_vocabulary(n_vocab, m->writer, m->err);
    m->weights = calloc((size_t)report.n_missing + 1, sizeof *m->weights);
    if (code == FD_OK && !m->weights) code = fd_fail(m->err, FD_ERR_MEMORY, "out of memory");
    for (int32_t i = 0; i < report.n_missing && code == FD_OK; i++) code = put_weight(m, &report.missing[i]);
    fd_weight_report_free(&report);
    return code;
}

fd_code fd_made_model_write(const fd_made_model *what, const char *path, fd_error *err) {
    maker m = {.what = what, .err = err};
    fd_code code = collect(&m);
    if (code == FD_OK) code = fd_gguf_write(m.writer, path, err);
    fd_gguf_writer_free(m.writer);
    free(m.weights);
    return code;
}

fd_code fd_made_model_open(const fd_made_model *what, fd_gguf **out, fd_error *err) {
    maker m = {.what = what, .err = err};
    fd_code code = collect(&m);
    if (code == FD_OK) {
        code = fd_gguf_write_and_open(m.writer, out, err);
        m.writer = NULL; /* freed */
    }
    fd_gguf_writer_free(m.writer);
    free(m.weights);
    return code;
}
