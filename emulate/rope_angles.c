/* cos and sin tables: the graph's shared ones, or computed as engines do, in binary32. There the angle p·f has a
 * relative error of 2^-24, so the cosine at position p is off by up to p·2^-24 radians: 3e-5 at position 512. */
#include <stdlib.h>

#include "emulate/internal.h"
#include "emulate/rounding.h"
#include "model/gguf/quant.h"

/* Frequency of pair i, radians a position. Llama 3's scaling: wavelengths beyond original_context / low_freq_factor are
 * stretched by `factor`, those short of original_context / high_freq_factor kept, a linear blend between. */
static float frequency(const fd_rope *rope, const float *factors, int32_t i) {
    float f = powf((float)rope->base, -2.0f * (float)i / (float)rope->n_rot);
    if (rope->scaling == FD_ROPE_SCALING_LINEAR) f = f / (float)rope->factor;
    if (rope->scaling == FD_ROPE_SCALING_LLAMA3) {
        float turns = (float)rope->original_context * f / 6.2831853f;
        float low = (float)rope->low_freq_factor, high = (float)rope->high_freq_factor;
        float kept = fminf(fmaxf((turns - low) / (high - low), 0.0f), 1.0f);
        f = kept * f + (1.0f - kept) * f / (float)rope->factor;
    }
    return factors ? f / factors[i] : f;
}

static void fill_own(const fd_emulate *e, fd_emulate_angles *a, const float *factors) {
    int32_t half = a->rope.n_rot / 2;
    for (int32_t i = 0; i < half; i++) {
        float f = frequency(&a->rope, factors, i);
        for (int64_t p = 0; p < e->exec.n_ctx; p++) {
            a->cos[p * half + i] = cosf((float)p * f);
            a->sin[p * half + i] = sinf((float)p * f);
        }
    }
}

fd_code fd_emulate_angles_make(const fd_emulate *e, const fd_node *node, fd_emulate_angles *out, fd_error *err) {
    int64_t half = node->rope.n_rot / 2, n = half * e->exec.n_ctx;
    float *factors = NULL;
    *out = (fd_emulate_angles){.rope = node->rope, .factors = node->weight[0]};
    out->cos = malloc(sizeof(float) * (size_t)n);
    out->sin = malloc(sizeof(float) * (size_t)n);
    if (node->weight[0] >= 0) {
        const fd_weight *w = &e->exec.graph->weights[node->weight[0]];
        factors = malloc(sizeof(float) * (size_t)w->n_col);
        if (factors) fd_dequantize_row(w->dtype, w->data, factors, w->n_col);
    }
    if (!out->cos || !out->sin || (node->weight[0] >= 0 && !factors)) {
        free(factors);
        return fd_fail(err, FD_ERR_MEMORY, "rope tables of %s: out of memory for %d positions", node->name,
                       e->exec.n_ctx);
    }
    if (e->class_.own_angles)
        fill_own(e, out, factors);
    else
        fd_rope_table(&out->rope, factors, 0, e->exec.n_ctx, out->cos, out->sin);
    fd_round_row(e->class_.tensor, out->cos, out->cos, n);
    fd_round_row(e->class_.tensor, out->sin, out->sin, n);
    free(factors);
    return FD_OK;
}
