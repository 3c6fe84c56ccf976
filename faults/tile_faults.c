/* Bugs of attention in tiles and in parts: online softmax, split K/V. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "faults/attention_rule.h"
#include "faults/tiles.h"
#include "numerics/contract.h"

const char *fd_tile_rule_name(fd_tile_rule rule) {
    static const char *const names[FD_TILE_RULE_COUNT] = {
        [FD_TILES_OUTPUT_STALE] = "flash_output_not_rescaled",
        [FD_TILES_SUM_STALE] = "flash_sum_not_rescaled",
        [FD_TILES_BOTH_STALE] = "flash_not_rescaled",
        [FD_TILES_BOTH_BY_TWO] = "flash_rescaled_by_exp2",
        [FD_TILES_EDGE_TWICE] = "flash_key_twice",
        [FD_TILES_OWN_TWICE] = "flash_own_key_twice",
        [FD_TILES_FIRST_TWICE] = "flash_first_key_twice",
        [FD_TILES_OWN_UNMIXED] = "own_value_unmixed",
        [FD_TILES_LAST_UNCOUNTED] = "flash_last_tile_uncounted",
        [FD_TILES_AVERAGED] = "split_kv_averaged",
        [FD_TILES_ADDED] = "split_kv_added",
        [FD_TILES_UNSCALED] = "split_kv_not_rescaled",
        [FD_TILES_FIRST_SUM] = "split_kv_first_sum",
        [FD_TILES_FIRST_ALONE] = "split_kv_first_alone",
    };
    return names[rule];
}

/* Where the tile of key t ends; of parts, the row's keys are shared out as evenly as can be. */
static int32_t tile_end(int32_t tile, int32_t t, int32_t n) {
    if (tile > 0) return t / tile * tile + tile < n ? t / tile * tile + tile : n;
    int32_t parts = -tile, part = 0;
    while ((int64_t)n * (part + 1) / parts <= t) part++;
    return (int32_t)((int64_t)n * (part + 1) / parts);
}

/* exp(s - m) is the weight divided by the largest weight up to its tile's end, times what all have in common. */
static void rescale_nothing(fd_tile_rule rule, int32_t tile, float *w, int32_t n) {
    double largest = 0, running = 0, sum = 0, all = 0;
    for (int32_t t = 0; t < n; t++) largest = fmax(largest, (double)w[t]);
    for (int32_t t = 0, end; t < n; t = end) {
        end = tile_end(tile, t, n);
        for (int32_t i = t; i < end; i++) running = fmax(running, (double)w[i]);
        for (int32_t i = t; i < end; i++) {
            all += (double)w[i];
            double stale = running > 0 ? (double)w[i] * largest / running : 0;
            if (rule == FD_TILES_BOTH_BY_TWO && largest > 0) stale *= exp2(log(running / largest));
            sum += stale;
            if (rule != FD_TILES_SUM_STALE) w[i] = (float)stale;
        }
    }
    /* a sink has its part of `all`, which stays as it is */
    double divisor = sum + (1 - all > 1e-6 ? 1 - all : 0);
    for (int32_t t = 0; t < n && rule != FD_TILES_OUTPUT_STALE && divisor > 0; t++)
        w[t] = (float)((double)w[t] / divisor);
}

static void weigh_parts_alike(fd_tile_rule rule, int32_t tile, float *w, int32_t n) {
    int32_t n_part = 0;
    for (int32_t t = 0; t < n; t = tile_end(tile, t, n)) n_part++;
    for (int32_t t = 0, end; t < n; t = end) {
        double sum = 0;
        end = tile_end(tile, t, n);
        for (int32_t i = t; i < end; i++) sum += (double)w[i];
        if (rule == FD_TILES_AVERAGED) sum *= n_part;
        for (int32_t i = t; i < end && sum > 0; i++) w[i] = (float)((double)w[i] / sum);
    }
}

/* Off the largest of its own part, a weight is as much larger. */
static void take_own_maxima(int32_t tile, float *w, int32_t n) {
    double all = 0;
    for (int32_t t = 0, end; t < n; t = end) {
        double largest = 0;
        end = tile_end(tile, t, n);
        for (int32_t i = t; i < end; i++) largest = fmax(largest, (double)w[i]);
        for (int32_t i = t; i < end && largest > 0; i++) all += (double)(w[i] = (float)((double)w[i] / largest));
    }
    for (int32_t t = 0; t < n && all > 0; t++) w[t] = (float)((double)w[t] / all);
}

/* By the sum of the first `n_counted` of them; all are divided by theirs already. */
static void divide_by_sum_of(int32_t n_counted, float *w, int32_t n) {
    double sum = 0;
    for (int32_t t = 0; t < n_counted; t++) sum += (double)w[t];
    for (int32_t t = 0; t < n && n_counted < n && sum > 0; t++) w[t] = (float)((double)w[t] / sum);
}

/* A row that has no whole tile has no rest either; a sink has its part of `all`, which stays as it is. */
static void leave_last_uncounted(int32_t tile, float *w, int32_t n) {
    const int32_t counted = tile > 0 && n > tile ? n - n % tile : n;
    double all = 0, sum = 0;
    for (int32_t t = 0; t < n; t++) {
        if (t < counted) sum += (double)w[t];
        all += (double)w[t];
    }
    if (1 - all > 1e-5) sum += 1 - all; /* less is what binary32 leaves of 1 */
    for (int32_t t = 0; t < n && counted < n && sum > 0; t++) w[t] = (float)((double)w[t] / sum);
}

/* A sink has its part of 1, which stays as it is. */
static void count_twice(fd_tile_rule rule, int32_t tile, float *w, int32_t n) {
    double more = 0;
    for (int32_t t = 0; t < n; t++) {
        const bool twice = rule == FD_TILES_OWN_TWICE     ? t == n - 1
                           : rule == FD_TILES_FIRST_TWICE ? t == 0
                                                          : t > 0 && tile > 0 && t % tile == 0;
        if (!twice) continue;
        more += (double)w[t];
        w[t] *= 2;
    }
    for (int32_t t = 0; t < n; t++) w[t] = (float)((double)w[t] / (1 + more));
}

void fd_tile_weights(fd_tile_rule rule, int32_t tile, float *weights, int32_t n) {
    const int32_t parts = -tile - FD_PARTS_ROUNDED_UP;
    if (parts > 0) tile = (n + parts - 1) / parts;
    if (rule == FD_TILES_FIRST_ALONE)
        for (int32_t t = tile_end(tile, 0, n); t < n; t++) weights[t] = 0;
    if (rule == FD_TILES_AVERAGED || rule == FD_TILES_ADDED)
        weigh_parts_alike(rule, tile, weights, n);
    else if (rule == FD_TILES_UNSCALED)
        take_own_maxima(tile, weights, n);
    else if (rule >= FD_TILES_EDGE_TWICE && rule <= FD_TILES_FIRST_TWICE)
        count_twice(rule, tile, weights, n);
    else if (rule == FD_TILES_OWN_UNMIXED)
        weights[n - 1] = 0;
    else if (rule == FD_TILES_FIRST_SUM || rule == FD_TILES_FIRST_ALONE)
        divide_by_sum_of(tile_end(tile, 0, n), weights, n);
    else if (rule == FD_TILES_LAST_UNCOUNTED)
        leave_last_uncounted(tile, weights, n);
    else
        rescale_nothing(rule, tile, weights, n);
}

/* As injected: tiles of two keys, so that short prompts show it, or two parts. */
static void mix_in_tiles(const fd_op_args *args, fd_tile_rule rule) {
    int64_t n_head = args->node->shape[0], items = args->n_pos * n_head, n_kv = args->n_kv;
    float *weights = malloc(sizeof *weights * (size_t)(items * n_kv));
    fd_op_args changed = *args;
    if (!weights) {
        fd_fault_nan(args, fd_node_width(args->node));
        return;
    }
    memcpy(weights, args->in[0], sizeof *weights * (size_t)(items * n_kv));
    for (int64_t i = 0; i < items; i++)
        fd_tile_weights(rule, rule < FD_TILES_AVERAGED ? 2 : -2, weights + i * n_kv,
                        args->pos0 + (int32_t)(i / n_head) + 1);
    changed.in[0] = weights;
    fd_rule_mix(&changed, (fd_attention_rule){0});
    free(weights);
}
FD_OVERRIDE(output_stale, mix_in_tiles(args, FD_TILES_OUTPUT_STALE))
FD_OVERRIDE(sum_stale, mix_in_tiles(args, FD_TILES_SUM_STALE))
FD_OVERRIDE(both_stale, mix_in_tiles(args, FD_TILES_BOTH_STALE))
FD_OVERRIDE(key_twice, mix_in_tiles(args, FD_TILES_EDGE_TWICE))
FD_OVERRIDE(own_key_twice, mix_in_tiles(args, FD_TILES_OWN_TWICE))
FD_OVERRIDE(first_key_twice, mix_in_tiles(args, FD_TILES_FIRST_TWICE))
FD_OVERRIDE(own_unmixed, mix_in_tiles(args, FD_TILES_OWN_UNMIXED))
FD_OVERRIDE(averaged, mix_in_tiles(args, FD_TILES_AVERAGED))
FD_OVERRIDE(added, mix_in_tiles(args, FD_TILES_ADDED))

#define MIX(name, summary) .info = {name, "attention", summary, "attn_out", false}, .op = FD_OP_ATTN_MIX

static const fd_fault rows[] = {
    {MIX("flash_output_not_rescaled", "flash attention: when the running maximum grows, the output of earlier tiles is "
                                      "not rescaled (tiles of 2 keys)"),
     .override = output_stale},
    {MIX("flash_sum_not_rescaled",
         "flash attention: when the running maximum grows, the sum of earlier tiles is not rescaled (tiles of 2 keys)"),
     .override = sum_stale},
    {MIX("flash_not_rescaled", "flash attention: when the running maximum grows, neither output nor sum of earlier "
                               "tiles are rescaled (tiles of "
                               "2 keys)"),
     .override = both_stale},
    {MIX("flash_key_twice",
         "flash attention: the first key of a tile is mixed in with the tile before it, too (tiles of 2 keys)"),
     .override = key_twice},
    {MIX("flash_own_key_twice", "flash attention: a token's own key is mixed in twice"), .override = own_key_twice},
    {MIX("flash_first_key_twice", "flash attention: the first key, with which the running state begins, is mixed in "
                                  "again"),
     .override = first_key_twice},
    {MIX("own_value_unmixed", "the sum over V leaves out a token's own row, or reads it as zeros"),
     .override = own_unmixed},
    {MIX("split_kv_averaged", "split K/V: the outputs of 2 parts of the keys are averaged, not weighed by their sums"),
     .override = averaged},
    {MIX("split_kv_added", "split K/V: the outputs of 2 parts of the keys are added, not weighed by their sums"),
     .override = added},
};
const fd_fault_family fd_tile_faults = FD_FAULT_FAMILY(rows);
