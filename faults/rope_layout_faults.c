/* RoPE turns the wrong pairs: halves for neighbours, the checkpoint's order for the file's, angles laid out for the other kind of pairs; or by
 * the wrong factor of each. */
#include "faults/internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void pairing(fd_fault_site *site) {
    fd_rope *rope = &site->node->rope;
    rope->pairing = rope->pairing == FD_ROPE_HALF ? FD_ROPE_INTERLEAVED : FD_ROPE_HALF;
}

/* Neighbours are turned, which the file has, but of weights in the checkpoint's order: there element e of the first half is
 * what the file has at 2e, and of the second at 2e + 1. */
FD_APPLIES(is_interleaved, node->rope.pairing == FD_ROPE_INTERLEAVED && node->rope.n_rot % 4 == 0)
static int32_t in_file(int32_t e, int32_t half) {
    return e < half ? 2 * e : 2 * (e - half) + 1;
}

/* What is not as it should be. */
typedef struct turned {
    bool checkpoint; /* pairs lie in the checkpoint's order */
    int32_t still;   /* this pair, counted from 1, is not turned */
    bool counts_on;  /* heads after the first have an exponent that counts on: head h turns base^h times slower */
    bool reversed;   /* pair i turns by the frequency of the last but i */
    bool first_plus; /* a cos + b sin for a cos - b sin */
    bool second_minus, sine_minus; /* a sin - b cos, -a sin + b cos, for a sin + b cos */
    bool by_head;                  /* the angle is that of the head's number, not of the position */
} turned;

static void turn_pairs(const fd_op_args *args, turned how) {
    const fd_node *node = args->node;
    const int64_t width = fd_node_width(node), head_dim = node->shape[1];
    const int32_t half = node->rope.n_rot / 2;
    const bool halves = node->rope.pairing == FD_ROPE_HALF;
    float *cosine = malloc(sizeof *cosine * (size_t)half * 2), *sine = cosine + half;
    if (!cosine) {
        fd_fault_nan(args, width);
        return;
    }
    memcpy(args->out, args->in[0], sizeof(float) * (size_t)(args->n_pos * width));
    for (int64_t at = 0; at < args->n_pos * width; at += head_dim) {
        fd_rope rope = node->rope;
        if (how.counts_on) {
            rope.scaling = FD_ROPE_SCALING_LINEAR;
            rope.factor = pow(rope.base, (double)(at % width) / rope.n_rot);
        }
        const int32_t pos = how.by_head ? (int32_t)(at % width / head_dim) : args->pos0 + (int32_t)(at / width);
        if (how.counts_on || how.by_head || at % width == 0)
            fd_rope_table(&rope, args->weight[0], pos, 1, cosine, sine);
        for (int32_t i = 0; i < half; i++) {
            const int32_t one = halves ? i : 2 * i, other = halves ? i + half : 2 * i + 1;
            float *head = (float *)args->out + at, *first = head + (how.checkpoint ? in_file(one, half) : one);
            float *second = head + (how.checkpoint ? in_file(other, half) : other), a = *first, b = *second;
            const int32_t angle = how.reversed ? half - 1 - i : i;
            if (i + 1 == how.still) continue;
            *first = fmaf(a, cosine[angle], (how.first_plus ? b : -b) * sine[angle]);
            *second = fmaf(how.sine_minus ? -a : a, sine[angle], (how.second_minus ? -b : b) * cosine[angle]);
        }
    }
    free(cosine);
}
FD_OVERRIDE(unpermuted, turn_pairs(args, (turned){.checkpoint = true}))
/* A loop over the pairs that begins a pair late, or ends one early. */
FD_OVERRIDE(first_pair_still, turn_pairs(args, (turned){.still = 1}))
FD_OVERRIDE(frequencies_reversed, turn_pairs(args, (turned){.reversed = true}))
FD_OVERRIDE(first_plus, turn_pairs(args, (turned){.first_plus = true}))
FD_OVERRIDE(second_minus, turn_pairs(args, (turned){.second_minus = true}))
FD_OVERRIDE(sine_minus, turn_pairs(args, (turned){.sine_minus = true}))
FD_OVERRIDE(by_head, turn_pairs(args, (turned){.by_head = true}))
FD_OVERRIDE(last_pair_still, turn_pairs(args, (turned){.still = args->node->rope.n_rot / 2}))

/* Neighbours are turned by angles laid out for halves, [a b … a b …], or halves by those for neighbours, [a a b b …]: the elements of
 * a pair have two angles. `checkpoint`: in the order that the checkpoint has. */
static void other_layout(const fd_op_args *args, bool neighbours, bool checkpoint) {
    const fd_node *node = args->node;
    const int64_t width = fd_node_width(node), head_dim = node->shape[1];
    const int32_t n_rot = node->rope.n_rot, half = n_rot / 2;
    float *cosine = malloc(sizeof *cosine * (size_t)half * 2), *sine = cosine + half;
    if (!cosine) {
        fd_fault_nan(args, width);
        return;
    }
    memcpy(args->out, args->in[0], sizeof(float) * (size_t)(args->n_pos * width));
    for (int64_t at = 0; at < args->n_pos * width; at += head_dim) {
        const float *from = (const float *)args->in[0] + at;
        float *to = (float *)args->out + at;
        if (at % width == 0)
            fd_rope_table(&node->rope, args->weight[0], args->pos0 + (int32_t)(at / width), 1, cosine, sine);
        for (int32_t e = 0; e < 2 * half; e++) {
            const bool first = neighbours ? e % 2 == 0 : e < half;
            const int32_t other = neighbours ? e ^ 1 : (e + half) % n_rot, angle = neighbours ? e % half : e / 2;
            const int32_t own = checkpoint ? in_file(e, half) : e, its = checkpoint ? in_file(other, half) : other;
            to[own] = fmaf(from[own], cosine[angle], (first ? -from[its] : from[its]) * sine[angle]);
        }
    }
    free(cosine);
}
FD_OVERRIDE(neighbours_by_halves, other_layout(args, true, false))
FD_OVERRIDE(halves_by_neighbours, other_layout(args, false, false))
FD_OVERRIDE(neighbours_by_halves_unpermuted, other_layout(args, true, true))
FD_OVERRIDE(halves_by_neighbours_unpermuted, other_layout(args, false, true))
FD_APPLIES(several_pairs, node->rope.n_rot % 4 == 0)

/* A loop over all of a row that takes its own index for the head's, i for i % head_dim. */
FD_APPLIES(several_heads, node->shape[0] > 1 && node->rope.scaling == FD_ROPE_SCALING_NONE && node->weight[0] < 0)
FD_OVERRIDE(over_heads, turn_pairs(args, (turned){.counts_on = true}))

/* A loop that takes the row for one head. */
static void first_head_alone(const fd_op_args *args) {
    const int64_t width = fd_node_width(args->node), head_dim = args->node->shape[1];
    turn_pairs(args, (turned){0});
    for (int64_t at = 0; at < args->n_pos * width; at += width)
        memcpy((float *)args->out + at + head_dim, (const float *)args->in[0] + at + head_dim,
               sizeof(float) * (size_t)(width - head_dim));
}
FD_APPLIES(more_heads, node->shape[0] > 1)

FD_APPLIES(has_factors, node->weight[0] >= 0)
static void factors_times(fd_fault_site *site) {
    const fd_weight *of = fd_fault_weight(site->graph, site->node, 0);
    const int64_t n = of->n_row * of->n_col;
    float *is = fd_fault_row(of, 0), *to = is ? fd_fault_new_weight(site, FD_F32, sizeof *to * (uint64_t)n) : NULL;
    for (int64_t i = 0; i < n && to; i++) to[i] = 1.0f / is[i];
    free(is);
}

/* ---- K and V taken for each other in the cache, in the checkpoint's order: as the file has them K's rows are permuted, V's are not ---- */

/* What is written in that cache's place: V for K, K turned for V; NULL: its rows are not as wide, or nothing is permuted. */
static const fd_node *written_for(const fd_graph *graph, const fd_node *cache) {
    const int32_t k = fd_fault_sibling(graph, cache, "attn_k_rope");
    const int32_t other = fd_fault_is_one_of(cache, "cache_v") ? k : fd_fault_sibling(graph, cache, "attn_v");
    if (k < 0 || other < 0 || !is_interleaved(graph, &graph->nodes[k])) return NULL;
    return fd_node_width(&graph->nodes[other]) == fd_node_width(cache) ? &graph->nodes[other] : NULL;
}
FD_APPLIES(is_of_permuted, fd_fault_is_one_of(node, "cache_k cache_v") && written_for(graph, node))

static void reordered(const fd_op_args *args) {
    const fd_graph *graph = args->graph;
    const fd_node *cache = args->node, *k = &graph->nodes[fd_fault_sibling(graph, cache, "attn_k_rope")];
    const int32_t width = (int32_t)fd_node_width(cache), dim = cache->shape[1], n = k->rope.n_rot;
    const bool to_checkpoint = fd_fault_is_one_of(cache, "cache_v");
    for (int32_t i = 0; i < args->n_pos * width; i++) {
        const int32_t e = i % dim, head = i - e, file = head + (e < n ? in_file(e, n / 2) : e);
        ((float *)args->out)[args->pos0 * width + (to_checkpoint ? i : file)] =
            ((const float *)args->in[0])[to_checkpoint ? file : i];
    }
}
FD_EDIT(exchanged, node->input[0] = written_for(site->graph, node)->id; node->override = reordered)

/* The matrices in that order: K's rows are V's, turned as those of K are in the file, and V's are K's, turned back. The other matrix
 * by its name in the file: what the same fault did to the other node does not matter. */
static const fd_weight *other_matrix(const fd_graph *graph, const fd_node *node) {
    const bool is_k = fd_fault_is_one_of(node, "attn_k");
    char name[80];
    snprintf(name, sizeof name, "%.*s%s.weight", (int)(strlen(node->name) - strlen("attn_k")), node->name,
             is_k ? "attn_v" : "attn_k");
    for (int32_t i = 0; i < graph->n_weight; i++)
        if (strcmp(graph->weights[i].name, name) == 0) return &graph->weights[i];
    return NULL;
}
static bool has_other_matrix(const fd_graph *graph, const fd_node *node) {
    const int32_t k = fd_fault_sibling(graph, node, "attn_k_rope");
    if (k < 0 || !is_interleaved(graph, &graph->nodes[k]) || graph->nodes[k].n_dim != 2) return false;
    const fd_weight *own = fd_fault_weight(graph, node, 0), *its = other_matrix(graph, node);
    return own && its && own->n_row == its->n_row && own->n_col == its->n_col && own->dtype == its->dtype;
}
static void swapped(fd_fault_site *site) {
    const fd_graph *graph = site->graph;
    const bool is_k = fd_fault_is_one_of(site->node, "attn_k");
    const fd_node *k = &graph->nodes[fd_fault_sibling(graph, site->node, "attn_k_rope")];
    const fd_weight its = *other_matrix(graph, site->node);
    const size_t row = (size_t)its.bytes / (size_t)its.n_row;
    const int32_t dim = k->shape[1], n = k->rope.n_rot;
    uint8_t *data = fd_fault_new_weight(site, its.dtype, its.bytes);
    for (int32_t i = 0; i < its.n_row && data; i++) {
        const int32_t e = i % dim, file = i - e + (e < n ? in_file(e, n / 2) : e);
        memcpy(data + row * (size_t)(is_k ? file : i), (const uint8_t *)its.data + row * (size_t)(is_k ? i : file),
               row);
    }
}

#define ROPE(name, located, summary) .info = {name, "rope", summary, located, false}, .op = FD_OP_ROPE

static const fd_fault rows[] = {
    {ROPE("rope_pairing", "attn_q_rope",
          "RoPE rotates the other pairs: halves for neighbours or neighbours for halves"),
     .edit = pairing},
    {ROPE("rope_pairing_unpermuted", "attn_q_rope",
          "RoPE rotates neighbours of Q and K in the checkpoint's order, whose halves are pairs: they were not "
          "permuted"),
     .applies = is_interleaved, .override = unpermuted},
    {ROPE("rope_neighbours_mixed", "attn_q_rope", "RoPE turns neighbours by angles that are laid out for halves"),
     .applies = several_pairs, .override = neighbours_by_halves},
    {ROPE("rope_halves_mixed", "attn_q_rope", "RoPE turns halves by angles that are laid out for neighbours"),
     .applies = several_pairs, .override = halves_by_neighbours},
    {ROPE("rope_unpermuted_neighbours", "attn_q_rope",
          "in the checkpoint's order RoPE turns neighbours by angles that are laid out for halves"),
     .applies = is_interleaved, .override = neighbours_by_halves_unpermuted},
    {ROPE("rope_unpermuted_halves", "attn_q_rope",
          "in the checkpoint's order RoPE turns halves by angles that are laid out for neighbours"),
     .applies = is_interleaved, .override = halves_by_neighbours_unpermuted},
    {ROPE("rope_over_heads", "attn_q_rope",
          "RoPE hardly turns the heads after the first: its exponent counts on from head to head, by the row's index"),
     .applies = several_heads, .override = over_heads, .info.form_of = "RoPE turns the first head alone"},
    {ROPE("rope_first_head_alone", "attn_q_rope",
          "RoPE turns the first head alone, or the others by an exponent that counts on from head to head"),
     .applies = more_heads, .override = first_head_alone, .info.form_of = "RoPE turns the first head alone"},
    {ROPE("rope_factors_times", "attn_q_rope",
          "RoPE multiplies its frequencies by the file's factors, it should divide"),
     .applies = has_factors, .edit = factors_times},
    {ROPE("rope_first_pair_missing", "attn_q_rope", "RoPE does not turn the first pair of each head"),
     .applies = several_pairs, .override = first_pair_still},
    {ROPE("rope_frequencies_reversed", "attn_q_rope",
          "RoPE's frequencies are in reverse: the first pair turns slowest"),
     .applies = several_pairs, .override = frequencies_reversed},
    {ROPE("rope_first_plus", "attn_q_rope",
          "RoPE gives a cos + b sin for the first of a pair, where a cos - b sin is right"),
     .override = first_plus},
    {ROPE("rope_second_minus", "attn_q_rope",
          "RoPE gives a sin - b cos for the second of a pair, where a sin + b cos is right"),
     .override = second_minus},
    {ROPE("rope_sine_minus", "attn_q_rope",
          "RoPE gives b cos - a sin for the second of a pair, where a sin + b cos is right"),
     .override = sine_minus},
    {ROPE("rope_by_head", "attn_q_rope", "RoPE turns every row by the number of its head, not by its position"),
     .applies = more_heads, .override = by_head},
    {ROPE("rope_last_pair_missing", "attn_q_rope", "RoPE does not turn the last pair of each head"),
     .applies = several_pairs, .override = last_pair_still, .info.hardly = true}, /* its angles are the smallest */
    {.info = {"kv_v_is_k_unpermuted", "kv_cache",
              "K is written to V's cache, too, in the checkpoint's order, whose halves are pairs", "cache_v", false},
     .op = FD_OP_KV_WRITE,
     .nodes = "cache_v",
     .applies = is_of_permuted,
     .edit = exchanged},
    {.info = {"kv_exchanged_unpermuted", "kv_cache",
              "the caches of K and V are exchanged, in the checkpoint's order, whose halves are pairs", "cache_k",
              false, .pair = true},
     .op = FD_OP_KV_WRITE,
     .nodes = "cache_k cache_v",
     .applies = is_of_permuted,
     .edit = exchanged},
    {.info = {"k_v_swapped_unpermuted", "loader",
              "the K and V matrices are exchanged, in the checkpoint's order, whose halves are pairs", "attn_k", false,
              .pair = true},
     .op = FD_OP_MATMUL,
     .nodes = "attn_k attn_v",
     .applies = has_other_matrix,
     .edit = swapped},
};
const fd_fault_family fd_rope_layout_faults = FD_FAULT_FAMILY(rows);
