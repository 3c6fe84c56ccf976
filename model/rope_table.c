/* RoPE angles: inv_freq_i = base^(-2i/n_rot), scaled, times the position, in the contract's binary64; cos and sin
 * rounded once. Both backends read these tables, so they cannot differ between them. */
#include "base/clones.h"
#include "model/weight_rows.h"
#include "numerics/contract.h"

bool fd_rope_same_table(const fd_node *a, const fd_node *b) {
    const fd_rope *x = &a->rope, *y = &b->rope;
    return x->n_rot == y->n_rot && x->base == y->base && x->scaling == y->scaling && x->factor == y->factor &&
           x->low_freq_factor == y->low_freq_factor && x->high_freq_factor == y->high_freq_factor &&
           x->original_context == y->original_context && x->beta_fast == y->beta_fast && x->beta_slow == y->beta_slow &&
           x->ext_factor == y->ext_factor && x->attention_factor == y->attention_factor && a->weight[0] == b->weight[0];
}

/* Llama 3.1's scaling by wavelength: long waves are slowed by `factor`, short ones kept, those between interpolated.
 * Source: the Llama 3.1 reference code's apply_scaling (Meta, 2024); constants come from the file. */
static double llama3_scaled(const fd_rope *rope, double inv_freq) {
    const double two_pi = 6.283185307179586;
    double wavelength = two_pi / inv_freq;
    double long_wave = rope->original_context / rope->low_freq_factor;
    double short_wave = rope->original_context / rope->high_freq_factor;
    if (wavelength < short_wave) return inv_freq;
    if (wavelength > long_wave) return inv_freq / rope->factor;
    double smooth = (rope->original_context / wavelength - rope->low_freq_factor) /
                    (rope->high_freq_factor - rope->low_freq_factor);
    return (1.0 - smooth) * inv_freq / rope->factor + smooth * inv_freq;
}

/* The pair that turns `turns` times over the original context. */
static double pair_of_turns(const fd_rope *rope, double turns) {
    const double two_pi = 6.283185307179586;
    return rope->n_rot * fd_log64(rope->original_context / (turns * two_pi)) / (2.0 * fd_log64(rope->base));
}

/* YaRN (Peng et al., 2023, section 3.2): pairs before `low` keep their frequency, those after `high` have it divided by
 * the factor, a linear ramp between; both ends are whole pairs, as in the paper's reference code. */
static double yarn_scaled(const fd_rope *rope, double inv_freq, int32_t i) {
    double low = floor(pair_of_turns(rope, rope->beta_fast)), high = ceil(pair_of_turns(rope, rope->beta_slow));
    if (low < 0.0) low = 0.0;
    if (high > rope->n_rot - 1) high = rope->n_rot - 1;
    double along = ((double)i - low) / (high - low > 0.001 ? high - low : 0.001);
    double ramp = along < 0.0 ? 0.0 : along > 1.0 ? 1.0 : along;
    double kept = rope->ext_factor < 0.0 ? ramp * -rope->ext_factor : (1.0 - ramp) * rope->ext_factor;
    return inv_freq / rope->factor * (1.0 - kept) + inv_freq * kept;
}

FD_FOR_EACH_CPU static double inverse_frequency(const fd_rope *rope, const fd_weight *factors, int32_t i) {
    double inv_freq = fd_pow64(rope->base, -2.0 * (double)i / (double)rope->n_rot);
    if (rope->scaling == FD_ROPE_SCALING_LINEAR) inv_freq = inv_freq / rope->factor;
    if (rope->scaling == FD_ROPE_SCALING_LLAMA3) inv_freq = llama3_scaled(rope, inv_freq);
    if (rope->scaling == FD_ROPE_SCALING_YARN) inv_freq = yarn_scaled(rope, inv_freq, i);
    return factors ? inv_freq / (double)fd_weight_element(factors, i) : inv_freq;
}

static double attention_factor(const fd_rope *rope) {
    return rope->attention_factor == 0.0 ? 1.0 : rope->attention_factor;
}

FD_FOR_EACH_CPU void fd_rope_table_f64(const fd_rope *rope, const fd_weight *factors, int32_t pos0, int32_t n,
                                       double *cos_out, double *sin_out) {
    int32_t half = rope->n_rot / 2;
    double factor = attention_factor(rope);
    for (int32_t i = 0; i < half; i++) {
        double inv_freq = inverse_frequency(rope, factors, i);
        for (int32_t p = 0; p < n; p++) {
            double sine, cosine;
            fd_sincos64((double)(pos0 + p) * inv_freq, &sine, &cosine);
            sin_out[(int64_t)p * half + i] = sine * factor;
            cos_out[(int64_t)p * half + i] = cosine * factor;
        }
    }
}

FD_FOR_EACH_CPU void fd_rope_table(const fd_rope *rope, const fd_weight *factors, int32_t pos0, int32_t n,
                                   float *cos_out, float *sin_out) {
    int32_t half = rope->n_rot / 2;
    double factor = attention_factor(rope);
    for (int32_t i = 0; i < half; i++) {
        double inv_freq = inverse_frequency(rope, factors, i);
        for (int32_t p = 0; p < n; p++) {
            double sine, cosine;
            fd_sincos64((double)(pos0 + p) * inv_freq, &sine, &cosine);
            sin_out[(int64_t)p * half + i] = (float)(sine * factor);
            cos_out[(int64_t)p * half + i] = (float)(cosine * factor);
        }
    }
}
