#include "tests/ops/op_case.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/block_scales.h"
#include "model/gguf/quant.h"
#include "numerics/contract.h"

enum { UNTOUCHED = 0x7fedcba9 }; /* a NaN that no op makes */

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

static void *own(const op_case *c, size_t bytes) {
    struct case_memory *m = c->memory;
    void *block = malloc(bytes ? bytes : 1);
    m->blocks = realloc(m->blocks, sizeof *m->blocks * (m->n + 1));
    return m->blocks[m->n++] = block;
}

static float *random_floats(op_case *c, int64_t n) {
    float *x = own(c, sizeof *x * (size_t)n);
    for (int64_t i = 0; i < n; i++) x[i] = case_random(c);
    return x;
}

static op_case *new_case(fd_op op, int32_t pos0, int32_t n_pos) {
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

static void set_input(op_case *c, int i, float *data, int64_t n, int32_t n_dim, int32_t shape0, int32_t shape1) {
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

static void set_weight(op_case *c, int i, uint32_t dtype, int64_t n_row, int64_t n_col) {
    int64_t row_bytes = fd_dtype_row_bytes(dtype, n_col);
    char *data = own(c, (size_t)(n_row * row_bytes));
    float *row = own(c, sizeof *row * (size_t)n_col);
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

static void set_shape(op_case *c, int32_t n_dim, int32_t shape0, int32_t shape1) {
    c->nodes[2].n_dim = n_dim;
    c->nodes[2].shape[0] = shape0;
    c->nodes[2].shape[1] = shape1;
    c->n_out = (int64_t)c->args.n_pos * shape0 * (n_dim == 2 ? shape1 : 1);
}

op_case *case_embed(uint32_t dtype, int32_t n_vocab, int32_t n_embd, int32_t n_pos) {
    op_case *c = new_case(FD_OP_EMBED, 0, n_pos);
    int32_t *tokens = own(c, sizeof *tokens * (size_t)n_pos);
    for (int32_t i = 0; i < n_pos; i++) tokens[i] = (int32_t)(next(&c->seed) % (uint64_t)n_vocab);
    tokens[0] = n_vocab - 1;
    c->args.tokens = tokens;
    set_weight(c, 0, dtype, n_vocab, n_embd);
    set_shape(c, 1, n_embd, 0);
    return c;
}

op_case *case_norm(uint32_t dtype, int32_t n, int32_t n_pos, float eps) {
    op_case *c = new_case(FD_OP_RMS_NORM, 0, n_pos);
    set_input(c, 0, random_floats(c, (int64_t)n * n_pos), (int64_t)n * n_pos, 1, n, 0);
    set_weight(c, 0, dtype, 1, n);
    set_shape(c, 1, n, 0);
    c->nodes[2].eps = eps;
    return c;
}

op_case *case_head_norm(int32_t head_dim, int32_t n_head, int32_t n_pos) {
    op_case *c = new_case(FD_OP_RMS_NORM, 0, n_pos);
    int64_t n = (int64_t)head_dim * n_head * n_pos;
    set_input(c, 0, random_floats(c, n), n, 2, n_head, head_dim);
    set_weight(c, 0, FD_F32, 1, head_dim);
    set_shape(c, 2, n_head, head_dim);
    c->nodes[2].eps = 1e-6f;
    return c;
}

op_case *case_matmul(uint32_t dtype, int32_t n_in, int32_t n_out, int32_t n_pos, int bias) {
    op_case *c = new_case(FD_OP_MATMUL, 0, n_pos);
    set_input(c, 0, random_floats(c, (int64_t)n_in * n_pos), (int64_t)n_in * n_pos, 1, n_in, 0);
    set_weight(c, 0, dtype, n_out, n_in);
    if (bias >= 0) set_weight(c, 1, (uint32_t)bias, 1, n_out);
    set_shape(c, 1, n_out, 0);
    return c;
}

op_case *case_rope(fd_rope_pairing pairing, int32_t n_rot, int32_t n_head, int32_t head_dim, int32_t pos0,
                   int32_t n_pos) {
    op_case *c = new_case(FD_OP_ROPE, pos0, n_pos);
    int64_t n = (int64_t)n_head * head_dim * n_pos;
    size_t table = sizeof(float) * (size_t)(n_rot / 2) * (size_t)(pos0 + n_pos);
    set_input(c, 0, random_floats(c, n), n, 2, n_head, head_dim);
    set_shape(c, 2, n_head, head_dim);
    c->nodes[2].rope = (fd_rope){.pairing = pairing, .n_rot = n_rot, .base = 10000.0, .factor = 1.0};
    float *cosine = own(c, table), *sine = own(c, table);
    fd_rope_table(&c->nodes[2].rope, NULL, 0, pos0 + n_pos, cosine, sine);
    c->args.rope_cos = cosine;
    c->args.rope_sin = sine;
    return c;
}

op_case *case_kv_write(int32_t width, int32_t pos0, int32_t n_pos, int32_t n_ctx, int32_t row_offset) {
    op_case *c = new_case(FD_OP_KV_WRITE, pos0, n_pos);
    set_input(c, 0, random_floats(c, (int64_t)width * n_pos), (int64_t)width * n_pos, 2, 1, width);
    set_shape(c, 2, 1, width);
    c->n_out = (int64_t)width * n_ctx;
    c->args.n_ctx = n_ctx;
    c->nodes[2].row_offset = row_offset;
    strcpy(c->nodes[2].name, "blk.0.cache_k"); /* the states of recurrent layers are none */
    return c;
}

op_case *case_attention(fd_op op, int32_t n_head, int32_t n_head_kv, int32_t head_dim, int32_t pos0, int32_t n_pos) {
    op_case *c = new_case(op, pos0, n_pos);
    int64_t n_kv = pos0 + n_pos, rows = (int64_t)n_pos * n_head, cache = n_kv * n_head_kv * head_dim;
    if (op == FD_OP_ATTN_SCORES) {
        set_input(c, 0, random_floats(c, rows * head_dim), rows * head_dim, 2, n_head, head_dim);
    } else {
        float *positions = random_floats(c, rows * n_kv);
        for (int64_t i = 0; i < rows * n_kv; i++) {
            bool masked = i % n_kv > pos0 + i / n_kv / n_head;
            if (op == FD_OP_ATTN_SOFTMAX)
                positions[i] = masked ? (float)-INFINITY : positions[i] * 8;
            else
                positions[i] = masked ? 0.0f : (positions[i] + 1) / (float)n_kv;
        }
        set_input(c, 0, positions, rows * n_kv, 2, n_head, 0);
        c->nodes[0].over_kv = true;
    }
    if (op != FD_OP_ATTN_SOFTMAX) set_input(c, 1, random_floats(c, cache), cache, 2, n_head_kv, head_dim);
    set_shape(c, 2, n_head, op == FD_OP_ATTN_MIX ? head_dim : (int32_t)n_kv);
    if (op != FD_OP_ATTN_MIX) {
        c->nodes[2].over_kv = true;
        c->nodes[2].shape[1] = 0;
    }
    c->nodes[2].scale = 1.0f / sqrtf((float)head_dim);
    return c;
}

op_case *case_elementwise(fd_op op, int32_t n, int32_t n_pos) {
    op_case *c = new_case(op, 0, n_pos);
    for (int i = 0; i < 2; i++) set_input(c, i, random_floats(c, (int64_t)n * n_pos), (int64_t)n * n_pos, 1, n, 0);
    for (int64_t i = 0; i < c->n_in[0]; i++) c->in[0][i] *= 20.0f; /* both ends of the sigmoid */
    for (int64_t i = 0; i < c->n_in[1] && op == FD_OP_SWIGLU_CLAMP; i++) c->in[1][i] *= 20.0f; /* and of the clamp */
    set_shape(c, 1, n, 0);
    c->nodes[2].slope = 1.702f;
    c->nodes[2].limit = 7.0f;
    return c;
}

op_case *case_unary(fd_op op, int32_t n, int32_t n_pos) {
    op_case *c = new_case(op, 0, n_pos);
    set_input(c, 0, random_floats(c, (int64_t)n * n_pos), (int64_t)n * n_pos, 1, n, 0);
    for (int64_t i = 0; i < c->n_in[0]; i++) /* a cap's both ends, a softmax's whole row */
        c->in[0][i] *= op == FD_OP_SOFTMAX ? 4.0f : op == FD_OP_SCALE ? 1.0f : i % 3 ? 20.0f : 100.0f;
    set_shape(c, 1, n, 0);
    c->nodes[2].scale = 11.3137f;
    c->nodes[2].softcap = 30.0f;
    return c;
}

/* ---- experts ---- */

static void set_ids(op_case *c) {
    int64_t n = (int64_t)c->args.n_pos * CASE_CHOSEN;
    float *ids = own(c, sizeof *ids * (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        int32_t first = (int32_t)(i / CASE_CHOSEN * 5 + 3), rank = (int32_t)(i % CASE_CHOSEN);
        ids[i] = (float)((first + 3 * rank) % CASE_EXPERTS); /* 3 and 8 have no common divisor */
    }
    set_input(c, 1, ids, n, 1, CASE_CHOSEN, 0);
    c->nodes[1].op = FD_OP_TOP_K;
    c->graph.hparams.n_expert = CASE_EXPERTS;
}

op_case *case_top_k(int32_t n_pos) {
    op_case *c = new_case(FD_OP_TOP_K, 0, n_pos);
    int64_t n = (int64_t)CASE_EXPERTS * n_pos;
    set_input(c, 0, random_floats(c, n), n, 1, CASE_EXPERTS, 0);
    set_shape(c, 1, CASE_CHOSEN, 0);
    return c;
}

op_case *case_expert_weights(fd_gating gating, float scale, int32_t n_pos) {
    op_case *c = new_case(FD_OP_EXPERT_WEIGHTS, 0, n_pos);
    int64_t n = (int64_t)CASE_EXPERTS * n_pos;
    set_input(c, 0, random_floats(c, n), n, 1, CASE_EXPERTS, 0);
    for (int64_t i = 0; i < n && gating != FD_GATING_SOFTMAX; i++) c->in[0][i] = fabsf(c->in[0][i]);
    set_ids(c);
    set_shape(c, 1, CASE_CHOSEN, 0);
    c->nodes[2].gating = gating;
    c->nodes[2].scale = scale;
    return c;
}

op_case *case_expert_matmul(uint32_t dtype, int32_t n_in, int32_t n_out, int32_t n_pos, bool own_rows, int bias) {
    op_case *c = new_case(FD_OP_EXPERT_MATMUL, 0, n_pos);
    int64_t n = (int64_t)n_pos * n_in * (own_rows ? CASE_CHOSEN : 1);
    float *x = random_floats(c, n);
    if (own_rows)
        set_input(c, 0, x, n, 2, CASE_CHOSEN, n_in);
    else
        set_input(c, 0, x, n, 1, n_in, 0);
    set_ids(c);
    set_weight(c, 0, dtype, (int64_t)CASE_EXPERTS * n_out, n_in);
    if (bias >= 0) set_weight(c, 1, (uint32_t)bias, CASE_EXPERTS, n_out);
    set_shape(c, 2, CASE_CHOSEN, n_out);
    return c;
}

op_case *case_expert_sum(int32_t n, int32_t n_pos) {
    op_case *c = new_case(FD_OP_EXPERT_SUM, 0, n_pos);
    int64_t rows = (int64_t)n_pos * CASE_CHOSEN;
    set_input(c, 0, random_floats(c, rows * n), rows * n, 2, CASE_CHOSEN, n);
    set_input(c, 1, random_floats(c, rows), rows, 1, CASE_CHOSEN, 0);
    set_shape(c, 1, n, 0);
    return c;
}

/* ---- heads ---- */

static void set_heads(op_case *c, int i, int32_t n_head, int32_t n) {
    int64_t size = (int64_t)c->args.n_pos * n_head * n;
    set_input(c, i, random_floats(c, size), size, 2, n_head, n);
}

op_case *case_slice(int32_t n_pos) {
    op_case *c = new_case(FD_OP_SLICE, 0, n_pos);
    set_heads(c, 0, 4, 48);
    set_shape(c, 2, 4, 20);
    c->nodes[2].first = 8;
    return c;
}

op_case *case_concat(bool shared, int32_t n_pos) {
    op_case *c = new_case(FD_OP_CONCAT, 0, n_pos);
    set_heads(c, 0, 4, 48);
    set_heads(c, 1, shared ? 1 : 4, 16);
    set_shape(c, 2, 4, 64);
    return c;
}

op_case *case_head_matmul(uint32_t dtype, int32_t n_in, int32_t n_out, int32_t n_pos) {
    op_case *c = new_case(FD_OP_HEAD_MATMUL, 0, n_pos);
    set_heads(c, 0, 3, n_in);
    set_weight(c, 0, dtype, (int64_t)3 * n_out, n_in);
    set_shape(c, 2, 3, n_out);
    return c;
}

/* ---- state-space layers ---- */

static void set_cache(op_case *c, int32_t width) {
    int64_t n = (int64_t)c->args.n_kv * width;
    set_input(c, 0, random_floats(c, n), n, 2, 1, width);
    c->nodes[0].op = FD_OP_KV_WRITE;
}

op_case *case_conv(int32_t pos0, int32_t n_pos) {
    op_case *c = new_case(FD_OP_CONV, pos0, n_pos);
    set_cache(c, 40);
    set_weight(c, 0, FD_F32, 40, 4);
    set_weight(c, 1, FD_F32, 1, 40);
    set_shape(c, 2, 1, 40);
    return c;
}

op_case *case_ssm_scan(bool each_state, int32_t pos0, int32_t n_pos) {
    enum { HEADS = 4, DIM = 6, GROUPS = 2, STATE = 8, WIDTH = HEADS + HEADS * DIM + GROUPS * STATE };
    op_case *c = new_case(FD_OP_SSM_SCAN, pos0, n_pos);
    set_cache(c, WIDTH);
    for (int64_t i = 0; i < c->n_in[0]; i++) /* dt is positive */
        if (i % WIDTH < HEADS) c->in[0][i] = fabsf(c->in[0][i]);
    set_heads(c, 1, GROUPS, STATE);
    set_weight(c, 0, FD_F32, HEADS, each_state ? STATE : 1);
    set_weight(c, 1, FD_F32, each_state ? 1 : HEADS, each_state ? HEADS : 1);
    float *a = (float *)c->weights[0].data; /* the case's own */
    for (int i = 0; i < HEADS * (each_state ? STATE : 1); i++) a[i] = -fabsf(a[i]) - 0.1f;
    set_shape(c, 2, HEADS, DIM);
    return c;
}

/* ---- linear attention ---- */

op_case *case_token_shift(int32_t pos0, int32_t n_pos) {
    op_case *c = new_case(FD_OP_TOKEN_SHIFT, pos0, n_pos);
    set_cache(c, 40);
    set_weight(c, 0, FD_F32, 1, 40);
    set_shape(c, 1, 40, 0);
    return c;
}

static void make_unit(float *x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    for (int i = 0; i < n; i++) x[i] /= sqrtf(sum);
}

op_case *case_gated_delta(int32_t pos0, int32_t n_pos) {
    enum { KEYS = 2, EACH = 2, KEY = 8, DIM = 6, OF_KEY = 2 * EACH + KEY + EACH * DIM };
    op_case *c = new_case(FD_OP_GATED_DELTA, pos0, n_pos);
    set_cache(c, KEYS * OF_KEY);
    for (float *row = c->in[0]; row < c->in[0] + c->n_in[0]; row += OF_KEY) {
        for (int i = 0; i < EACH; i++) { /* it decays, and is corrected by a part */
            row[i] = -fabsf(row[i]);
            row[EACH + i] = fabsf(row[EACH + i]);
        }
        make_unit(row + 2 * EACH, KEY);
    }
    set_heads(c, 1, KEYS, KEY);
    set_shape(c, 2, KEYS * EACH, DIM);
    c->nodes[2].scale = 0.375f;
    return c;
}

op_case *case_wkv7(int32_t pos0, int32_t n_pos) {
    enum { HEADS = 3, DIM = 8 };
    op_case *c = new_case(FD_OP_WKV7, pos0, n_pos);
    set_cache(c, HEADS * 5 * DIM);
    for (float *w = c->in[0]; w < c->in[0] + c->n_in[0]; w += 5 * DIM) {
        float *a = w + 3 * DIM, *b = w + 4 * DIM;
        make_unit(a, DIM);
        for (int i = 0; i < DIM; i++) {
            w[i] = 0.55f + 0.45f * fabsf(w[i]);
            b[i] = -a[i] * fabsf(b[i]); /* what a reads is taken away, in part */
        }
    }
    set_heads(c, 1, HEADS, DIM);
    set_shape(c, 2, HEADS, DIM);
    return c;
}

void case_add_sinks(op_case *c, uint32_t dtype) {
    set_weight(c, 0, dtype, 1, c->nodes[2].shape[0]);
}

void case_free(op_case *c) {
    for (size_t i = 0; i < c->memory->n; i++) free(c->memory->blocks[i]);
    free(c->memory->blocks);
    c->memory->blocks = NULL;
    c->memory->n = 0;
}

float *case_run(const op_case *c, const fd_ref_ops *ops, int n_part) {
    fd_op_args args = c->args;
    float *out = own(c, sizeof *out * (size_t)c->n_out);
    for (int64_t i = 0; i < c->n_out; i++) out[i] = fd_from_bits32(UNTOUCHED);
    args.out = out;
    int64_t items = fd_ref_cost_of(&args).items;
    for (int part = 0; part < n_part; part++)
        ops->run[c->nodes[2].op](&args, items * part / n_part, items * (part + 1) / n_part);
    return out;
}

float *case_run_scalar(const op_case *c) {
    fd_ref_ops ops = fd_ref_select(FD_NUMERICS_EXACT, FD_ISA_BASELINE, true);
    return case_run(c, &ops, 1);
}

void case_expect_twins(const op_case *c, fd_numerics numerics, const int *n_parts, const char *what) {
    fd_ref_ops scalar = fd_ref_select(numerics, FD_ISA_BASELINE, true);
    float *expected = case_run(c, &scalar, 1);
    for (int isa = 0; isa <= (int)fd_isa_best(); isa++) {
        fd_ref_ops ops = fd_ref_select(numerics, (fd_isa)isa, false);
        for (const int *parts = n_parts; *parts; parts++) {
            int64_t n = bits_differ(case_run(c, &ops, *parts), expected, c->n_out);
            cr_expect_eq(n, 0, "%s, %s in %d parts: %lld of %lld outputs differ from the scalar definition", what,
                         fd_isa_name((fd_isa)isa), *parts, (long long)n, (long long)c->n_out);
        }
    }
}

static double *widen(const op_case *c, const float *x, int64_t n) {
    double *y = own(c, sizeof *y * (size_t)n);
    for (int64_t i = 0; i < n; i++) y[i] = (double)x[i];
    return y;
}

/* The case's arguments in binary64, with an output of NaN. */
static fd_op_args wide_args(const op_case *c) {
    fd_op_args args = c->args;
    int64_t table = (int64_t)c->args.n_kv * (c->nodes[2].rope.n_rot / 2);
    double *cosine = own(c, sizeof *cosine * (size_t)table), *sine = own(c, sizeof *sine * (size_t)table);
    double *out = own(c, sizeof *out * (size_t)c->n_out);
    for (int i = 0; i < 2; i++) args.in[i] = widen(c, c->in[i], c->n_in[i]);
    if (table) fd_rope_table_f64(&c->nodes[2].rope, NULL, 0, c->args.n_kv, cosine, sine);
    args.rope_cos = cosine;
    args.rope_sin = sine;
    for (int64_t i = 0; i < c->n_out; i++) out[i] = NAN;
    args.out = out;
    return args;
}

double *case_run_f64(const op_case *c) {
    fd_op_args args = wide_args(c);
    fd_reference_op(FD_NUMERICS_F64, &args);
    return args.out;
}

static double *run_f64_with(const op_case *c, fd_isa isa, bool scalar, int n_part) {
    fd_op_args args = wide_args(c);
    fd_ref_ops ops = fd_ref_select(FD_NUMERICS_F64, isa, scalar);
    int64_t items = fd_ref_cost_of(&args).items;
    for (int part = 0; part < n_part; part++)
        ops.run[c->nodes[2].op](&args, items * part / n_part, items * (part + 1) / n_part);
    return args.out;
}

void case_expect_f64_twins(const op_case *c, const int *n_parts, const char *what) {
    const double *expected = run_f64_with(c, FD_ISA_BASELINE, true, 1);
    for (int isa = 0; isa <= (int)fd_isa_best(); isa++)
        for (const int *parts = n_parts; *parts; parts++) {
            const double *found = run_f64_with(c, (fd_isa)isa, false, *parts);
            for (int64_t i = 0; i < c->n_out; i++) {
                bool same = memcmp(&found[i], &expected[i], sizeof *found) == 0;
                cr_assert(same || (isnan(found[i]) && isnan(expected[i])),
                          "%s, %s in %d parts: output %lld is %.17g, not %.17g", what, fd_isa_name((fd_isa)isa), *parts,
                          (long long)i, found[i], expected[i]);
            }
        }
}

int64_t bits_differ(const float *a, const float *b, int64_t n) {
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++) count += fd_canonical32(a[i]) != fd_canonical32(b[i]);
    return count;
}

float *case_weight_row(const op_case *c, int weight, int64_t row) {
    const fd_weight *w = &c->weights[weight];
    float *values = own(c, sizeof *values * (size_t)w->n_col);
    fd_dequantize_row(w->dtype, (const char *)w->data + row * fd_dtype_row_bytes(w->dtype, w->n_col), values, w->n_col);
    return values;
}
