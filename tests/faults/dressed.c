#include "tests/faults/dressed.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "model/gguf/quant.h"

const fd_dress fd_dresses[FD_N_DRESS_ALL] = {
    {"kjv-llama in Q4_0, RoPE scaled by 4", FD_Q4_0, 4.0, 0, 0, false},
    {"kjv-llama in Q4_K, half of each head rotated", FD_Q4_K, 1.0, 16, 0, false},
    {"kjv-llama in Q6_K", FD_Q6_K, 1.0, 0, 0, false},
    {"kjv-llama in Q4_0, YaRN by 8", FD_Q4_0, 1.0, 0, 8, false},
    {"kjv-llama in Q4_0, LongRoPE", FD_Q4_0, 1.0, 0, 0, true},
    {"kjv-llama in Q2_K", FD_Q2_K, 1.0, 0, 0, false},
    {"kjv-llama in Q3_K", FD_Q3_K, 1.0, 0, 0, false},
    {"kjv-llama in Q5_K", FD_Q5_K, 1.0, 0, 0, false},
    {"kjv-llama in Q5_0", FD_Q5_0, 1.0, 0, 0, false},
    {"kjv-llama in IQ3_S", FD_IQ3_S, 1.0, 0, 0, false},
    {"kjv-llama in Q4_1", FD_Q4_1, 1.0, 0, 0, false},
};

static void *allocate(size_t size) {
    void *memory = calloc(1, size);
    if (!memory) abort();
    return memory;
}

static uint8_t random_byte(uint32_t *state) {
    *state = *state * 1664525u + 1013904223u;
    return (uint8_t)(*state >> 24);
}

/* Scales that make weights of some hundredths, as trained ones are: 32 · 7 · d, and for Q4_K a min that centres
 * them. */
static void fill(uint32_t dtype, uint8_t *blocks, int64_t n_block, uint32_t seed) {
    int64_t size = fd_dtype_get(dtype)->block_bytes;
    for (int64_t i = 0; i < n_block * size; i++) blocks[i] = random_byte(&seed);
    for (int64_t b = 0; b < n_block; b++) {
        float vary = 1.0f + (float)random_byte(&seed) / 256.0f;
        if (dtype == FD_Q4_K || dtype == FD_Q5_K) { /* d and dmin stand at the same place in both */
            fd_block_q4_K *block = (fd_block_q4_K *)(blocks + b * size);
            block->d = fd_f32_to_f16(1e-4f * vary);
            block->dmin = fd_f32_to_f16(7.5e-4f * vary);
        } else if (dtype == FD_Q2_K) {
            fd_block_q2_K *block = (fd_block_q2_K *)(blocks + b * size);
            block->d = block->dmin = fd_f32_to_f16(2e-3f * vary);
        } else if (dtype == FD_Q3_K) {
            ((fd_block_q3_K *)(blocks + b * size))->d = fd_f32_to_f16(4e-4f * vary);
        } else if (dtype == FD_IQ3_S) {
            ((fd_block_iq3_s *)(blocks + b * size))->d = fd_f32_to_f16(2e-4f * vary);
        } else {
            fd_block_q6_K *block = (fd_block_q6_K *)(blocks + b * size);
            block->d = fd_f32_to_f16(2e-5f * vary);
        }
    }
}

static void requantise(const fd_weight *from, uint32_t dtype, uint8_t *to) {
    float *row = allocate(sizeof *row * (size_t)from->n_col);
    for (int64_t r = 0; r < from->n_row; r++) {
        const char *src = (const char *)from->data + r * fd_dtype_row_bytes(from->dtype, from->n_col);
        fd_dequantize_row(from->dtype, src, row, from->n_col);
        fd_quantize_row(dtype, row, to + r * fd_dtype_row_bytes(dtype, from->n_col), from->n_col);
    }
    free(row);
}

/* Two vectors more: every pair slower, the long factors by more. */
static void add_factors(fd_dressed *d) {
    fd_graph *graph = d->graph;
    int32_t n_pair = graph->hparams.rope.n_rot / 2;
    graph->weights = realloc(graph->weights, sizeof *graph->weights * (size_t)(graph->n_weight + 2));
    if (!graph->weights) abort();
    for (int k = 0; k < 2; k++) {
        float *factors = allocate(sizeof *factors * (size_t)n_pair);
        for (int32_t i = 0; i < n_pair; i++) factors[i] = 1.0f + (float)(i * (k + 1)) * 0.1f;
        d->blocks[d->n_block++] = (uint8_t *)factors;
        graph->weights[graph->n_weight + k] = (fd_weight){
            .dtype = FD_F32, .n_row = 1, .n_col = n_pair, .data = factors, .bytes = sizeof *factors * (uint64_t)n_pair};
        strcpy(graph->weights[graph->n_weight + k].name, k ? "rope_factors_long.weight" : "rope_factors_short.weight");
    }
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ROPE)
            for (int k = 0; k < 2; k++) graph->nodes[i].weight[k] = graph->n_weight + k;
    graph->n_weight += 2;
}

fd_dressed fd_dress_up(const fd_graph *graph, const fd_dress *dress) {
    fd_dressed d = {0};
    fd_error err = {0};
    if (fd_graph_clone(graph, &d.graph, &err) != FD_OK) abort();
    d.blocks = allocate(sizeof *d.blocks * (size_t)(graph->n_weight + 2));
    bool *done = allocate((size_t)graph->n_weight);
    for (int32_t i = 0; i < d.graph->n_node; i++) {
        fd_node *node = &d.graph->nodes[i];
        if (node->op == FD_OP_ROPE && dress->linear != 1.0) {
            node->rope.scaling = FD_ROPE_SCALING_LINEAR;
            node->rope.factor = dress->linear;
        }
        if (node->op == FD_OP_ROPE && dress->yarn > 0) {
            node->rope.scaling = FD_ROPE_SCALING_YARN;
            node->rope.factor = dress->yarn;
            node->rope.original_context = 64;
            node->rope.beta_fast = 32;
            node->rope.beta_slow = 1;
            node->rope.ext_factor = 1;
            node->rope.attention_factor = 1.2;
        }
        if (node->op == FD_OP_ROPE && dress->n_rot) node->rope.n_rot = dress->n_rot;
        if (node->op != FD_OP_MATMUL || done[node->weight[0]]) continue;
        done[node->weight[0]] = true;
        fd_weight *w = &d.graph->weights[node->weight[0]];
        uint64_t bytes = (uint64_t)(w->n_row * fd_dtype_row_bytes(dress->dtype, w->n_col));
        uint8_t *block = d.blocks[d.n_block++] = allocate((size_t)bytes);
        if (fd_can_quantize(dress->dtype))
            requantise(w, dress->dtype, block);
        else
            fill(dress->dtype, block, (int64_t)bytes / fd_dtype_get(dress->dtype)->block_bytes, (uint32_t)i);
        w->dtype = dress->dtype;
        w->data = block;
        w->bytes = bytes;
    }
    free(done);
    if (dress->longrope) add_factors(&d);
    return d;
}

void fd_undress(fd_dressed *dressed) {
    for (int32_t i = 0; i < dressed->n_block; i++) free(dressed->blocks[i]);
    free(dressed->blocks);
    fd_graph_free(dressed->graph);
}
