#include "dumpers/store/schema.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

static const char *const level_names[] = {
    [FD_TRACE_FINGERPRINT] = "fingerprint", [FD_TRACE_STATS] = "stats", [FD_TRACE_FULL] = "full"};

const char *fd_trace_level_name(fd_trace_level level) {
    return level_names[level];
}

int fd_trace_level_parse(const char *name) {
    for (int i = 0; i <= FD_TRACE_FULL; i++)
        if (strcasecmp(level_names[i], name) == 0) return i;
    return -1;
}

#define FIELD(member)                                                                                                  \
    { #member, offsetof(fd_trace_info, member), sizeof(((fd_trace_info *)0)->member) }
const fd_info_field fd_info_fields[] = {
    FIELD(producer), FIELD(numerics),   FIELD(backend),    FIELD(device),    FIELD(driver),
    FIELD(build),    FIELD(model_name), FIELD(model_hash), FIELD(arch),      FIELD(kv_type),
    FIELD(fusion),   FIELD(fault),      FIELD(sources),    FIELD(tokenizer), FIELD(names),
    FIELD(absent),   FIELD(partial),    FIELD(started),    FIELD(finished),
};
#undef FIELD
const size_t fd_info_field_count = sizeof fd_info_fields / sizeof *fd_info_fields;

#define IN_HEALTH(member) offsetof(fd_trace_health, member)
const fd_health_info fd_health_columns[FD_HEALTH_COUNT] = {
    [FD_HEALTH_N_KV] = {"n_kv", true, 0, IN_HEALTH(n_kv), "positions visible in the K/V cache"},
    [FD_HEALTH_TOP_LOGIT] = {"top_logit", false, 1, IN_HEALTH(top_logit), "largest logits, best first"},
    [FD_HEALTH_TOP_ID] = {"top_id", true, 1, IN_HEALTH(top_id), "their token ids, lowest id first among equals"},
    [FD_HEALTH_TOP1] = {"top1_probability", false, 0, IN_HEALTH(top1_probability), "softmax of the largest logit"},
    [FD_HEALTH_RANGE] = {"logit_range", false, 0, IN_HEALTH(logit_range), "largest minus tenth largest logit"},
    [FD_HEALTH_LOOP] = {"loop_length", true, 0, IN_HEALTH(loop_length),
                        "period of a token loop that ends here, 0: none"},
    [FD_HEALTH_ENTROPY] = {"entropy", false, 2, 0,
                           "entropy of the attention weights in nats, [n_pos, n_layer, n_head]"},
    [FD_HEALTH_SINK] = {"sink", false, 2, 0, "attention weight on position 0, [n_pos, n_layer, n_head]"},
};
#undef IN_HEALTH

#define INTEGER(row, name, member)                                                                                     \
    { name, offsetof(row, member), 0 }
#define TEXT(row, name, member)                                                                                        \
    { name, offsetof(row, member), sizeof((row *)0)->member }
static const fd_h5_member step_members[] = {
    INTEGER(fd_step_row, "first", first),
    INTEGER(fd_step_row, "count", count),
    INTEGER(fd_step_row, "kind", kind),
    INTEGER(fd_step_row, "level", level),
};
static const fd_h5_member graph_members[] = {
    INTEGER(fd_graph_row, "seq", seq),
    TEXT(fd_graph_row, "name", name),
    TEXT(fd_graph_row, "op", op),
    TEXT(fd_graph_row, "input0", input[0]),
    TEXT(fd_graph_row, "input1", input[1]),
    TEXT(fd_graph_row, "weight0", weight[0]),
    TEXT(fd_graph_row, "weight1", weight[1]),
    TEXT(fd_graph_row, "params", params),
    INTEGER(fd_graph_row, "layer", layer),
    INTEGER(fd_graph_row, "n_dim", n_dim),
    INTEGER(fd_graph_row, "shape0", shape[0]),
    INTEGER(fd_graph_row, "shape1", shape[1]),
    INTEGER(fd_graph_row, "shape2", shape[2]),
    INTEGER(fd_graph_row, "shape3", shape[3]),
    INTEGER(fd_graph_row, "over_kv", over_kv),
    TEXT(fd_graph_row, "dtype", dtype),
    TEXT(fd_graph_row, "covers", covers),
};
#undef INTEGER
#undef TEXT
const fd_h5_type fd_step_row_type = {FD_H5_NO_NUMBER, sizeof(fd_step_row), step_members,
                                     sizeof step_members / sizeof *step_members};
const fd_h5_type fd_graph_row_type = {FD_H5_NO_NUMBER, sizeof(fd_graph_row), graph_members,
                                      sizeof graph_members / sizeof *graph_members};

static void fill_params(const fd_graph *graph, const fd_node *node, char *out, size_t size) {
    const fd_rope *rope = &node->rope;
    size_t at = 0;
    switch (node->op) {
    case FD_OP_ATTN_ALIBI: snprintf(out, size, "max_bias=%.9g", (double)node->max_bias); break;
    case FD_OP_ATTN_TEMPERATURE:
        at = (size_t)snprintf(out, size, "scale=%.9g length=%d", (double)node->scale, node->length);
        if (node->first) snprintf(out + at, size - at, " first=%d", node->first);
        break;
    case FD_OP_CLAMP: snprintf(out, size, "limit=%.9g", (double)node->limit); break;
    case FD_OP_LAYER_NORM:
    case FD_OP_L2_NORM:
    case FD_OP_RMS_NORM: snprintf(out, size, "eps=%.9g", (double)node->eps); break;
    case FD_OP_ATTN_SCORES:
        at = (size_t)snprintf(out, size, "scale=%.9g", (double)node->scale);
        if (node->window)
            at += (size_t)snprintf(out + at, size - at, " %s=%d", node->chunked ? "chunk" : "window", node->window);
        if (node->softcap > 0.0f) snprintf(out + at, size - at, " softcap=%.9g", (double)node->softcap);
        break;
    case FD_OP_GATED_DELTA: snprintf(out, size, "scale=%.9g", (double)node->scale); break;
    case FD_OP_SCALE: snprintf(out, size, "factor=%.9g", (double)node->scale); break;
    case FD_OP_SOFTCAP: snprintf(out, size, "cap=%.9g", (double)node->softcap); break;
    case FD_OP_SWIGLU_CLAMP:
        snprintf(out, size, "slope=%.9g limit=%.9g", (double)node->slope, (double)node->limit);
        break;
    case FD_OP_SLICE: snprintf(out, size, "first=%d", node->first); break;
    case FD_OP_TOP_K:
        at = (size_t)snprintf(out, size, "k=%d", node->shape[0]);
        if (node->n_group > 0) snprintf(out + at, size - at, " groups=%d used=%d", node->n_group, node->n_group_used);
        break;
    case FD_OP_EXPERT_WEIGHTS:
        at = (size_t)snprintf(out, size, "gating=%s", fd_gating_name(node->gating));
        if (node->scale != 1.0f) snprintf(out + at, size - at, " scale=%.9g", (double)node->scale);
        break;
    case FD_OP_EXPERT_MATMUL: snprintf(out, size, "n_expert=%d", graph->hparams.n_expert); break;
    case FD_OP_ROPE:
        at = (size_t)snprintf(out, size, "pairing=%s n_rot=%d base=%.17g",
                              rope->pairing == FD_ROPE_HALF ? "half" : "interleaved", rope->n_rot, rope->base);
        if (rope->scaling != FD_ROPE_SCALING_NONE && at < size)
            at += (size_t)snprintf(out + at, size - at, " scaling=%s factor=%.9g", fd_rope_scaling_name(rope->scaling),
                                   rope->factor);
        if (rope->attention_factor != 0 && rope->attention_factor != 1 && at < size)
            at += (size_t)snprintf(out + at, size - at, " attention_factor=%.9g", rope->attention_factor);
        if (node->weight[1] >= 0 && at < size)
            snprintf(out + at, size - at, " factors=%s",
                     strstr(graph->weights[node->weight[0]].name, "long") ? "long" : "short");
        break;
    case FD_OP_KV_WRITE: snprintf(out, size, "row_offset=%d", node->row_offset); break;
    default: break;
    }
}

void fd_graph_row_fill(const fd_graph *graph, int32_t i, uint32_t dtype, fd_graph_row *row) {
    const fd_node *node = &graph->nodes[i];
    memset(row, 0, sizeof *row);
    row->seq = i;
    snprintf(row->name, sizeof row->name, "%s", node->name);
    snprintf(row->op, sizeof row->op, "%s", fd_op_name(node->op));
    if (node->op == FD_OP_EMBED) snprintf(row->input[0], sizeof row->input[0], "tokens");
    for (int k = 0; k < FD_MAX_INPUTS; k++)
        if (node->input[k] >= 0) snprintf(row->input[k], sizeof row->input[k], "%s", graph->nodes[node->input[k]].name);
    for (int k = 0; k < FD_MAX_WEIGHTS; k++)
        if (node->weight[k] >= 0)
            snprintf(row->weight[k], sizeof row->weight[k], "%s", graph->weights[node->weight[k]].name);
    fill_params(graph, node, row->params, sizeof row->params);
    row->layer = node->layer;
    row->n_dim = node->n_dim;
    for (int k = 0; k < node->n_dim; k++) row->shape[k] = node->shape[k];
    row->over_kv = node->over_kv;
    snprintf(row->dtype, sizeof row->dtype, "%s", fd_dtype_get(dtype)->name);
}

fd_tensor_form fd_node_form(const fd_node *node, uint32_t dtype) {
    fd_tensor_form form = {.dtype = dtype, .over_kv = node->over_kv, .n_dim = node->n_dim};
    form.scores = node->over_kv && node->op == FD_OP_ATTN_SCORES;
    memcpy(form.shape, node->shape, sizeof form.shape);
    return form;
}

fd_tensor_form fd_graph_row_form(const fd_graph_row *row, uint32_t dtype) {
    fd_tensor_form form = {.dtype = dtype, .over_kv = row->over_kv != 0, .n_dim = row->n_dim};
    form.scores = form.over_kv && strstr(row->name, "scores"); /* attn_scores */
    memcpy(form.shape, row->shape, sizeof form.shape);
    return form;
}

int32_t fd_layer_of_name(const char *name) {
    enum { MAX_LAYERS = 1 << 20 };
    char *end;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9') return -1;
    unsigned long layer = strtoul(name + 4, &end, 10);
    return *end == '.' && layer < MAX_LAYERS ? (int32_t)layer : -1;
}

/* ---- how a tensor's rows are stored ---- */

size_t fd_element_bytes(uint32_t dtype) {
    return dtype == FD_F64 ? 8 : dtype == FD_F32 ? 4 : 2;
}

hid_t fd_stored_type(uint32_t dtype) {
    return dtype == FD_F64 ? H5T_IEEE_F64LE : dtype == FD_F32 ? H5T_IEEE_F32LE : H5T_STD_U16LE;
}

hid_t fd_memory_type(uint32_t dtype) {
    return dtype == FD_F64 ? H5T_NATIVE_DOUBLE : dtype == FD_F32 ? H5T_NATIVE_FLOAT : H5T_NATIVE_UINT16;
}

void fd_form_extent(const fd_tensor_form *form, int64_t rows, int64_t keys, hsize_t out[FD_H5_MAX_RANK]) {
    out[0] = (hsize_t)rows;
    for (int i = 0; i < form->n_dim; i++) out[1 + i] = (hsize_t)form->shape[i];
    if (form->over_kv) out[form->n_dim] = (hsize_t)keys;
}

size_t fd_form_chunk_row_bytes(const fd_tensor_form *form) {
    hsize_t extent[FD_H5_MAX_RANK];
    size_t bytes = fd_element_bytes(form->dtype);
    fd_form_extent(form, 1, FD_KV_CHUNK, extent);
    for (int i = 1; i <= form->n_dim; i++) bytes *= (size_t)(extent[i] > 0 ? extent[i] : 1);
    return bytes;
}

void fd_form_chunk(const fd_tensor_form *form, bool compress, hsize_t out[FD_H5_MAX_RANK]) {
    enum { BYTES = 32768, MOST = 1024 };
    size_t row = fd_form_chunk_row_bytes(form);
    fd_form_extent(form, 1, FD_KV_CHUNK, out);
    for (int i = 1; i <= form->n_dim; i++) out[i] = out[i] > 0 ? out[i] : 1;
    out[0] = compress || row >= BYTES ? 1 : (BYTES + row - 1) / row;
    if (out[0] > MOST) out[0] = MOST;
}

int64_t fd_form_lines(const fd_tensor_form *form) {
    int64_t n = 1;
    for (int i = 0; i < form->n_dim - form->over_kv; i++) n *= form->shape[i];
    return n;
}

int64_t fd_form_bytes(const fd_tensor_form *form, bool compress, bool fresh, int64_t first, int64_t end) {
    hsize_t chunk[FD_H5_MAX_RANK];
    fd_form_chunk(form, compress, chunk);
    int64_t rows = (int64_t)chunk[0],
            begun = form->over_kv || compress || fresh ? first / rows : (first + rows - 1) / rows;
    int64_t n = (end + rows - 1) / rows - begun;
    if (form->over_kv) n *= (end + FD_KV_CHUNK - 1) / FD_KV_CHUNK;
    return n * (rows * (int64_t)fd_form_chunk_row_bytes(form) + 64) + 4096;
}

const void *fd_form_fill(const fd_tensor_form *form) {
    static const double fill64[] = {NAN, -INFINITY, 0.0};
    static const float fill32[] = {NAN, -INFINITY, 0.0f};
    static const uint16_t fill16[] = {0x7e00, 0xfc00, 0}, fill_bf16[] = {0x7fc0, 0xff80, 0};
    int which = !form->over_kv ? 0 : form->scores ? 1 : 2;
    switch (form->dtype) {
    case FD_F64: return &fill64[which];
    case FD_F32: return &fill32[which];
    case FD_F16: return &fill16[which];
    default: return &fill_bf16[which];
    }
}

void fd_trace_now(char out[32]) {
    time_t now = time(NULL);
    struct tm utc;
    gmtime_r(&now, &utc);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &utc);
}
