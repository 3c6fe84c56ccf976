/* cos and sin tables: the graph's shared ones, or computed as engines do, in binary32. There the angle p·f has a
 * relative error of 2^-24, so the cosine at position p is off by up to p·2^-24 radians: 3e-5 at position 512. */
#include <stdlib.h>

#include "emulate/internal.h"
#include "emulate/rounding.h"
#include "model/weight_rows.h"

/* Frequency of pair i, radians a position. Llama 3's scaling: wavelengths beyond original_context / low_freq_factor are
 * stretched by `factor`, those short of original_context / high_freq_factor kept, a linear blend between. YaRN's ramp
 * runs over pairs. */
static float frequency(const fd_rope *rope, const fd_weight *factors, int32_t i) {
    float f = powf((float)rope->base, -2.0f * (float)i / (float)rope->n_rot);
    if (rope->scaling == FD_ROPE_SCALING_LINEAR) f = f / (float)rope->factor;
    if (rope->scaling == FD_ROPE_SCALING_LLAMA3) {
        float turns = (float)rope->original_context * f / 6.2831853f;
        float low = (float)rope->low_freq_factor, high = (float)rope->high_freq_factor;
        float kept = fminf(fmaxf((turns - low) / (high - low), 0.0f), 1.0f);
        f = kept * f + (1.0f - kept) * f / (float)rope->factor;
    }
    if (rope->scaling == FD_ROPE_SCALING_YARN) {
        float n = (float)rope->n_rot, turns = (float)rope->original_context / 6.2831853f, base = (float)rope->base;
        float low = fmaxf(floorf(n * logf(turns / (float)rope->beta_fast) / (2.0f * logf(base))), 0.0f);
        float high = fminf(ceilf(n * logf(turns / (float)rope->beta_slow) / (2.0f * logf(base))), n - 1.0f);
        float along = ((float)i - low) / fmaxf(high - low, 0.001f);
        float ramp = fminf(fmaxf(along, 0.0f), 1.0f), ext = (float)rope->ext_factor;
        float kept = ext < 0 ? ramp * -ext : (1.0f - ramp) * ext;
        f = f / (float)rope->factor * (1.0f - kept) + f * kept;
    }
    return factors ? f / fd_weight_element(factors, i) : f;
}

static void fill_own(const fd_rope *rope, const fd_weight *factors, int32_t n_pos, float *cosine, float *sine) {
    int32_t half = rope->n_rot / 2;
    float attention_factor = rope->attention_factor == 0 ? 1.0f : (float)rope->attention_factor;
    for (int32_t i = 0; i < half; i++) {
        float f = frequency(rope, factors, i);
        for (int64_t p = 0; p < n_pos; p++) {
            cosine[p * half + i] = cosf((float)p * f) * attention_factor;
            sine[p * half + i] = sinf((float)p * f) * attention_factor;
        }
    }
}

fd_code fd_emulate_angles_make(const fd_emulate *e, const fd_node *node, fd_emulate_angles *out, fd_error *err) {
    int32_t n_ctx = e->exec.n_ctx;
    int64_t n = (int64_t)n_ctx * (node->rope.n_rot / 2);
    const fd_weight *factors = node->weight[0] >= 0 ? &e->exec.graph->weights[node->weight[0]] : NULL;
    *out = (fd_emulate_angles){.node = node};
    out->cos = malloc(sizeof(float) * (size_t)n);
    out->sin = malloc(sizeof(float) * (size_t)n);
    if (!out->cos || !out->sin)
        return fd_fail(err, FD_ERR_MEMORY, "rope tables of %s: out of memory for %d positions", node->name, n_ctx);
    if (e->class_.own_angles)
        fill_own(&node->rope, factors, n_ctx, out->cos, out->sin);
    else
        fd_rope_table(&node->rope, factors, 0, n_ctx, out->cos, out->sin);
    fd_round_row(e->class_.tensor, out->cos, out->cos, n);
    fd_round_row(e->class_.tensor, out->sin, out->sin, n);
    return FD_OK;
}
