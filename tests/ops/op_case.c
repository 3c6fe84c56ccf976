#include "tests/ops/op_case_parts.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/block_scales.h"
#include "model/gguf/quant.h"

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t next(uint64_t *seed) {
    uint64_t z = *seed += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

float case_random(op_case *c) {
    return (float)((int32_t)(next(&c->seed) >> 40) - (1 << 23)) * 0x1p-23f;
}

struct case_memory {
    op_case *c;
    void **blocks;
    size_t n;
    struct case_memory *next;
};
static struct case_memory *all; /* so that what a test does not free is no leak */

void *case_own(const op_case *c, size_t bytes) {
    struct case_memory *m = c->memory;
    void *block = malloc(bytes ? bytes : 1);
    m->blocks = realloc(m->blocks, sizeof *m->blocks * (m->n + 1));
    return m->blocks[m->n++] = block;
}

float *case_floats(op_case *c, int64_t n) {
    float *x = case_own(c, sizeof *x * (size_t)n);
    for (int64_t i = 0; i < n; i++) x[i] = case_random(c);
    return x;
}

op_case *case_new(fd_op op, int32_t pos0, int32_t n_pos) {
    op_case *c = calloc(1, sizeof *c);
    c->memory = calloc(1, sizeof *c->memory);
    c->memory->c = c;
    c->memory->next = all;
    all = c->memory;
    c->seed = (uint64_t)op * 1000003 + (uint64_t)pos0 * 101 + (uint64_t)n_pos;
    c->graph = (fd_graph){.nodes = c->nodes, .n_node = 3, .weights = c->weights, .n_weight = 2};
    for (int i = 0; i < 3; i++)
        c->nodes[i] = (fd_node){.id = i, .layer = -1, .input = {-1, -1}, .weight = {-1, -1}, .n_dim = 1};
    c->nodes[2].op = op;
    strcpy(c->nodes[2].name, fd_op_name(op));
    c->args =
        (fd_op_args){.graph = &c->graph, .node = &c->nodes[2], .pos0 = pos0, .n_pos = n_pos, .n_kv = pos0 + n_pos};
    return c;
}

void case_set_input(op_case *c, int i, float *data, int64_t n, int32_t n_dim, int32_t shape0, int32_t shape1) {
    c->in[i] = data;
    c->n_in[i] = n;
    c->args.in[i] = data;
    c->nodes[2].input[i] = i;
    c->nodes[i].n_dim = n_dim;
    c->nodes[i].shape[0] = shape0;
    c->nodes[i].shape[1] = shape1;
}

/* Random bytes are valid blocks of the formats that nothing here encodes, but for their scales, which must not be
 * huge. */
static void random_blocks(op_case *c, uint32_t dtype, char *to, int64_t bytes) {
    int64_t size = fd_dtype_get(dtype)->block_bytes;
    for (int64_t i = 0; i < bytes; i++) to[i] = (char)next(&c->seed);
    for (int64_t at = 0; at < bytes; at += size) {
        const float d = case_random(c) * 0.01f, dmin = case_random(c) * 0.01f;
        block_set_scales(dtype, to + at, d, dmin);
    }
}

void case_set_weight(op_case *c, int i, uint32_t dtype, int64_t n_row, int64_t n_col) {
    int64_t row_bytes = fd_dtype_row_bytes(dtype, n_col);
    char *data = case_own(c, (size_t)(n_row * row_bytes));
    float *row = case_own(c, sizeof *row * (size_t)n_col);
    for (int64_t r = 0; r < n_row; r++) {
        for (int64_t k = 0; k < n_col; k++) row[k] = case_random(c);
        if (fd_can_quantize(dtype))
            fd_quantize_row(dtype, row, data + r * row_bytes, n_col);
        else
            random_blocks(c, dtype, data + r * row_bytes, row_bytes);
    }
    c->weights[i] = (fd_weight){
        .dtype = dtype, .n_row = n_row, .n_col = n_col, .data = data, .bytes = (uint64_t)(n_row * row_bytes)};
    strcpy(c->weights[i].name, "test.weight");
    c->nodes[2].weight[i] = i;
    c->args.weight[i] = &c->weights[i];
}

void case_set_shape(op_case *c, int32_t n_dim, int32_t shape0, int32_t shape1) {
    c->nodes[2].n_dim = n_dim;
    c->nodes[2].shape[0] = shape0;
    c->nodes[2].shape[1] = shape1;
    c->n_out = (int64_t)c->args.n_pos * shape0 * (n_dim == 2 ? shape1 : 1);
}

void case_set_heads(op_case *c, int i, int32_t n_head, int32_t n) {
    int64_t size = (int64_t)c->args.n_pos * n_head * n;
    case_set_input(c, i, case_floats(c, size), size, 2, n_head, n);
}

op_case *case_embed(uint32_t dtype, int32_t n_vocab, int32_t n_embd, int32_t n_pos) {
    op_case *c = case_new(FD_OP_EMBED, 0, n_pos);
    int32_t *tokens = case_own(c, sizeof *tokens * (size_t)n_pos);
    for (int32_t i = 0; i < n_pos; i++) tokens[i] = (int32_t)(next(&c->seed) % (uint64_t)n_vocab);
    tokens[0] = n_vocab - 1;
    c->args.tokens = tokens;
    case_set_weight(c, 0, dtype, n_vocab, n_embd);
    case_set_shape(c, 1, n_embd, 0);
    return c;
}

op_case *case_norm(uint32_t dtype, int32_t n, int32_t n_pos, float eps) {
    op_case *c = case_new(FD_OP_RMS_NORM, 0, n_pos);
    case_set_input(c, 0, case_floats(c, (int64_t)n * n_pos), (int64_t)n * n_pos, 1, n, 0);
    case_set_weight(c, 0, dtype, 1, n);
    case_set_shape(c, 1, n, 0);
    c->nodes[2].eps = eps;
    return c;
}

op_case *case_head_norm(int32_t head_dim, int32_t n_head, int32_t n_pos) {
    op_case *c = case_new(FD_OP_RMS_NORM, 0, n_pos);
    int64_t n = (int64_t)head_dim * n_head * n_pos;
    case_set_input(c, 0, case_floats(c, n), n, 2, n_head, head_dim);
    case_set_weight(c, 0, FD_F32, 1, head_dim);
    case_set_shape(c, 2, n_head, head_dim);
    c->nodes[2].eps = 1e-6f;
    return c;
}

op_case *case_matmul(uint32_t dtype, int32_t n_in, int32_t n_out, int32_t n_pos, int bias) {
    op_case *c = case_new(FD_OP_MATMUL, 0, n_pos);
    case_set_input(c, 0, case_floats(c, (int64_t)n_in * n_pos), (int64_t)n_in * n_pos, 1, n_in, 0);
    case_set_weight(c, 0, dtype, n_out, n_in);
    if (bias >= 0) case_set_weight(c, 1, (uint32_t)bias, 1, n_out);
    case_set_shape(c, 1, n_out, 0);
    return c;
}

op_case *case_rope(fd_rope_pairing pairing, int32_t n_rot, int32_t n_head, int32_t head_dim, int32_t pos0,
                   int32_t n_pos) {
    op_case *c = case_new(FD_OP_ROPE, pos0, n_pos);
    int64_t n = (int64_t)n_head * head_dim * n_pos;
    size_t table = sizeof(float) * (size_t)(n_rot / 2) * (size_t)(pos0 + n_pos);
    case_set_input(c, 0, case_floats(c, n), n, 2, n_head, head_dim);
    case_set_shape(c, 2, n_head, head_dim);
    c->nodes[2].rope = (fd_rope){.pairing = pairing, .n_rot = n_rot, .base = 10000.0, .factor = 1.0};
    float *cosine = case_own(c, table), *sine = case_own(c, table);
    fd_rope_table(&c->nodes[2].rope, NULL, 0, pos0 + n_pos, cosine, sine);
    c->args.rope_cos = cosine;
    c->args.rope_sin = sine;
    return c;
}

op_case *case_kv_write(int32_t width, int32_t pos0, int32_t n_pos, int32_t n_ctx, int32_t row_offset) {
    op_case *c = case_new(FD_OP_KV_WRITE, pos0, n_pos);
    case_set_input(c, 0, case_floats(c, (int64_t)width * n_pos), (int64_t)width * n_pos, 2, 1, width);
    case_set_shape(c, 2, 1, width);
    c->n_out = (int64_t)width * n_ctx;
    c->args.n_ctx = n_ctx;
    c->nodes[2].row_offset = row_offset;
    strcpy(c->nodes[2].name, "blk.0.cache_k"); /* the states of recurrent layers are none */
    return c;
}

op_case *case_attention(fd_op op, int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t pos0, int32_t n_pos) {
    op_case *c = case_new(op, pos0, n_pos);
    int64_t n_kv = pos0 + n_pos, rows = (int64_t)n_pos * n_head, cache = n_kv * n_head_kv * head_dim;
    if (op == FD_OP_ATTN_SCORES) {
        case_set_input(c, 0, case_floats(c, rows * head_dim), rows * head_dim, 2, n_head, head_dim);
    } else {
        float *positions = case_floats(c, rows * n_kv);
        for (int64_t i = 0; i < rows * n_kv; i++) {
            bool masked = i % n_kv > pos0 + i / n_kv / n_head;
            if (op == FD_OP_ATTN_SOFTMAX)
                positions[i] = masked ? (float)-INFINITY : positions[i] * 8;
            else
                positions[i] = masked ? 0.0f : (positions[i] + 1) / (float)n_kv;
        }
        case_set_input(c, 0, positions, rows * n_kv, 2, n_head, 0);
        c->nodes[0].over_kv = true;
    }
    if (op != FD_OP_ATTN_SOFTMAX) case_set_input(c, 1, case_floats(c, cache), cache, 2, n_head_kv, head_dim);
    case_set_shape(c, 2, n_head, op == FD_OP_ATTN_MIX ? head_dim : (int32_t)n_kv);
    if (op != FD_OP_ATTN_MIX) {
        c->nodes[2].over_kv = true;
        c->nodes[2].shape[1] = 0;
    }
    c->nodes[2].scale = 1.0f / sqrtf((float)head_dim);
    return c;
}

op_case *case_elementwise(fd_op op, int32_t n, int32_t n_pos) {
    op_case *c = case_new(op, 0, n_pos);
    for (int i = 0; i < 2; i++) case_set_input(c, i, case_floats(c, (int64_t)n * n_pos), (int64_t)n * n_pos, 1, n, 0);
    for (int64_t i = 0; i < c->n_in[0]; i++) c->in[0][i] *= 20.0f; /* both ends of the sigmoid */
    for (int64_t i = 0; i < c->n_in[1] && op == FD_OP_SWIGLU_CLAMP; i++) c->in[1][i] *= 20.0f; /* and of the clamp */
    case_set_shape(c, 1, n, 0);
    c->nodes[2].slope = 1.702f;
    c->nodes[2].limit = 7.0f;
    return c;
}

op_case *case_unary(fd_op op, int32_t n, int32_t n_pos) {
    op_case *c = case_new(op, 0, n_pos);
    case_set_input(c, 0, case_floats(c, (int64_t)n * n_pos), (int64_t)n * n_pos, 1, n, 0);
    for (int64_t i = 0; i < c->n_in[0]; i++) /* a cap's both ends, a softmax's whole row */
        c->in[0][i] *= op == FD_OP_SOFTMAX ? 4.0f : op == FD_OP_SCALE ? 1.0f : i % 3 ? 20.0f : 100.0f;
    case_set_shape(c, 1, n, 0);
    c->nodes[2].scale = 11.3137f;
    c->nodes[2].softcap = 30.0f;
    return c;
}

/* ---- heads ---- */

op_case *case_slice(int32_t n_pos) {
    op_case *c = case_new(FD_OP_SLICE, 0, n_pos);
    case_set_heads(c, 0, 4, 48);
    case_set_shape(c, 2, 4, 20);
    c->nodes[2].first = 8;
    return c;
}

op_case *case_concat(bool shared, int32_t n_pos) {
    op_case *c = case_new(FD_OP_CONCAT, 0, n_pos);
    case_set_heads(c, 0, 4, 48);
    case_set_heads(c, 1, shared ? 1 : 4, 16);
    case_set_shape(c, 2, 4, 64);
    return c;
}

op_case *case_head_matmul(uint32_t dtype, int32_t n_in, int32_t n_out, int32_t n_pos) {
    op_case *c = case_new(FD_OP_HEAD_MATMUL, 0, n_pos);
    case_set_heads(c, 0, 3, n_in);
    case_set_weight(c, 0, dtype, (int64_t)3 * n_out, n_in);
    case_set_shape(c, 2, 3, n_out);
    return c;
}

void case_add_sinks(op_case *c, uint32_t dtype) {
    case_set_weight(c, 0, dtype, 1, c->nodes[2].shape[0]);
}

void case_free(op_case *c) {
    for (size_t i = 0; i < c->memory->n; i++) free(c->memory->blocks[i]);
    free(c->memory->blocks);
    c->memory->blocks = NULL;
    c->memory->n = 0;
}
