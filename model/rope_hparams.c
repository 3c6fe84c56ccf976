/* How far positions rotate, from the keys below rope.*: base, rotated part of a head, and the scaling for long
 * contexts.
 *
 * Attention factor: what YaRN and LongRoPE multiply cos and sin by. YaRN's is m(1) = 0.1 ln(factor) + 1, or where the
 * file has yarn_log_multiplier a the quotient m(1) / m(a) with m(a) = 0.1 a ln(factor) + 1 (Peng et al., YaRN, 2023,
 * section 3.4; the multiplier is DeepSeek's mscale_all_dim). rope.scaling.attn_factor multiplies it under every
 * scaling. */
#include <math.h>
#include <string.h>

#include "model/builder.h"
#include "numerics/contract.h"

static bool equals(fd_string s, const char *text) {
    return s.size == strlen(text) && memcmp(s.data, text, s.size) == 0;
}

static fd_code read_llama3(const fd_keys *keys, fd_rope *rope) {
    FD_TRY(fd_key_f64(keys, "rope.scaling.low_freq_factor", 1.0, &rope->low_freq_factor));
    FD_TRY(fd_key_f64(keys, "rope.scaling.high_freq_factor", 4.0, &rope->high_freq_factor));
    FD_TRY(fd_key_f64(keys, "rope.scaling.original_context_length", 8192.0, &rope->original_context));
    if (rope->high_freq_factor > rope->low_freq_factor && rope->low_freq_factor > 0.0 && rope->original_context > 0.0)
        return FD_OK;
    return fd_fail(
        keys->err, FD_ERR_INPUT,
        "keys %s.rope.scaling.*: low %g, high %g, original context %g; expected 0 < low < high and a context",
        keys->arch, rope->low_freq_factor, rope->high_freq_factor, rope->original_context);
}

static fd_code read_original_context(const fd_keys *keys, const fd_hparams *h, fd_rope *rope) {
    FD_TRY(fd_key_f64(keys, "rope.scaling.original_context_length", h->n_ctx_train, &rope->original_context));
    if (rope->original_context == 0.0) rope->original_context = h->n_ctx_train;
    if (rope->original_context >= 1.0) return FD_OK;
    return fd_fail(keys->err, FD_ERR_INPUT, "key %s.rope.scaling.original_context_length: %g, expected at least 1",
                   keys->arch, rope->original_context);
}

static double magnitude(double factor, double multiplier) {
    return factor <= 1.0 ? 1.0 : 0.1 * multiplier * fd_log64(factor) + 1.0;
}

/* llama.cpp reads most of these keys for a few architectures alone, and has its defaults for the others. */
static fd_code read_yarn(const fd_keys *keys, const fd_arch *arch, const fd_hparams *h, fd_rope *rope) {
    double multiplier = 0.0;
    fd_key_find(keys, "rope.scaling.yarn_attn_factor"); /* llama.cpp computes it again, as is done here */
    FD_TRY(read_original_context(keys, h, rope));
    rope->ext_factor = -1.0; /* "not set" */
    rope->beta_fast = 32.0;
    rope->beta_slow = 1.0;
    if (arch->reads & FD_READS_YARN_EXT) {
        rope->beta_fast = 8.0; /* grok's own default */
        FD_TRY(fd_key_f64(keys, "rope.scaling.yarn_ext_factor", -1.0, &rope->ext_factor));
    }
    if (arch->reads & (FD_READS_YARN | FD_READS_YARN_EXT)) {
        FD_TRY(fd_key_f64(keys, "rope.scaling.yarn_beta_fast", rope->beta_fast, &rope->beta_fast));
        FD_TRY(fd_key_f64(keys, "rope.scaling.yarn_beta_slow", 1.0, &rope->beta_slow));
    }
    if (arch->reads & (FD_READS_YARN_LOG | FD_READS_YARN_LOG_TENTH))
        FD_TRY(fd_key_f64(keys, "rope.scaling.yarn_log_multiplier", 0.0, &multiplier));
    if (arch->reads & FD_READS_YARN_LOG_TENTH) multiplier = (double)((float)multiplier / 0.1f);
    if (rope->ext_factor < 0.0) rope->ext_factor = 1.0;
    if (!(rope->beta_fast > rope->beta_slow && rope->beta_slow > 0.0 && multiplier >= 0.0))
        return fd_fail(
            keys->err, FD_ERR_INPUT,
            "keys %s.rope.scaling.yarn_*: beta_slow %g, beta_fast %g, log_multiplier %g; expected 0 < slow < "
            "fast and no negative multiplier",
            keys->arch, rope->beta_slow, rope->beta_fast, multiplier);
    if (rope->ext_factor == 0.0) return FD_OK; /* as llama.cpp: a linear scaling, without a factor on cos and sin */
    /* DeepSeek-V2 has the same multiplier above and below the line. */
    double own = strcmp(keys->arch, "deepseek2") == 0 && multiplier != 0.0 ? multiplier : 1.0;
    rope->attention_factor *= magnitude(rope->factor, own);
    if (multiplier != 0.0) rope->attention_factor /= magnitude(rope->factor, multiplier);
    return FD_OK;
}

static fd_code read_scaling(const fd_keys *keys, const fd_arch *arch, const fd_hparams *h, fd_rope *rope) {
    fd_string type;
    double linear;
    FD_TRY(fd_key_string(keys, "rope.scaling.type", &type));
    FD_TRY(fd_key_f64(keys, "rope.scale_linear", 0.0, &linear)); /* the older key for a linear factor */
    FD_TRY(fd_key_f64(keys, "rope.scaling.factor", linear, &rope->factor));
    if (rope->factor < 0.0)
        return fd_fail(keys->err, FD_ERR_INPUT, "key %s.rope.scaling.factor: %g, expected more than 0", keys->arch,
                       rope->factor);
    if (rope->factor == 0.0) rope->factor = 1.0; /* llama.cpp writes and reads 0 as "no scaling" */
    FD_TRY(fd_key_f64(keys, "rope.scaling.attn_factor", 1.0, &rope->attention_factor));
    if (!(rope->attention_factor > 0.0))
        return fd_fail(keys->err, FD_ERR_INPUT, "key %s.rope.scaling.attn_factor: %g, expected more than 0", keys->arch,
                       rope->attention_factor);
    if (type.data == NULL || equals(type, "linear")) {
        rope->scaling = rope->factor == 1.0 ? FD_ROPE_SCALING_NONE : FD_ROPE_SCALING_LINEAR;
    } else if (equals(type, "none")) {
        rope->scaling = FD_ROPE_SCALING_NONE;
        rope->factor = 1.0;
    } else if (equals(type, "llama3")) {
        rope->scaling = FD_ROPE_SCALING_LLAMA3;
        return read_llama3(keys, rope);
    } else if (equals(type, "yarn")) {
        rope->scaling = FD_ROPE_SCALING_YARN;
        return read_yarn(keys, arch, h, rope);
    } else if (equals(type, "longrope")) {
        rope->scaling = FD_ROPE_SCALING_LONGROPE;
        if (rope->factor != 1.0)
            return fd_fail(keys->err, FD_ERR_UNSUPPORTED,
                           "key %s.rope.scaling.factor: %g, with longrope only 1 is implemented", keys->arch,
                           rope->factor);
    } else {
        return fd_fail(keys->err, FD_ERR_UNSUPPORTED,
                       "key %s.rope.scaling.type: \"%.*s\"; none, linear, llama3, yarn and longrope are implemented",
                       keys->arch, (int)(type.size < 32 ? type.size : 32), type.data);
    }
    /* Files of LongRoPE seldom name it: their short and long factors do (fd_build_rope_freqs). */
    return read_original_context(keys, h, rope);
}

fd_code fd_rope_read(const fd_keys *keys, const fd_arch *arch, fd_hparams *h) {
    h->rope.pairing = arch->rope_pairing;
    FD_TRY(fd_key_i32(keys, "rope.dimension_count", h->head_dim, 2, h->head_dim, &h->rope.n_rot));
    if (arch->rope_whole && h->rope.n_rot != h->head_dim)
        return fd_fail(keys->err, FD_ERR_UNSUPPORTED, "key %s.rope.dimension_count: %d, expected a head's %d", h->arch,
                       h->rope.n_rot, h->head_dim);
    FD_TRY(fd_key_f64(keys, "rope.freq_base", 10000.0, &h->rope.base));
    if (!(h->rope.base >= 1.0))
        return fd_fail(keys->err, FD_ERR_INPUT, "key %s.rope.freq_base: %g, expected at least 1", h->arch,
                       h->rope.base);
    return read_scaling(keys, arch, h, &h->rope);
}
