/* Hyperparameters of a decoder from a GGUF's metadata. Values that are not implemented are refused by name, and so is a
 * key that nothing here reads (model/keys.h). */
#include "model/builder.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The largest number of all layers. A hybrid's layers have the same number, or 0. */
static fd_code read_most(const fd_keys *r, const fd_arch *arch, const char *key, int32_t n_layer, int32_t fallback,
                         int64_t high, int32_t *out) {
    const bool by_layer = arch->reads & FD_READS_LAYER_SIZES;
    const fd_gguf_kv *kv = fd_key_find(r, key);
    int64_t most = 0, item;
    for (uint64_t i = 0; kv && i < kv->count; i++) {
        if (!fd_gguf_item_i64(kv, i, &item) || item < 0 || item > high ||
            (!by_layer && item > 0 && most > 0 && item != most))
            return fd_fail(r->err, FD_ERR_UNSUPPORTED, "key %s.%s: expected one number%s for each layer", r->arch, key,
                           by_layer ? "" : ", or 0,");
        most = item > most ? item : most;
    }
    if (kv && kv->type == FD_GGUF_ARRAY && kv->count < (uint64_t)n_layer)
        return fd_fail(r->err, FD_ERR_INPUT, "key %s.%s: %llu layers, expected %d", r->arch, key,
                       (unsigned long long)kv->count, n_layer);
    *out = most > 0 ? (int32_t)most : fallback;
    return FD_OK;
}

static fd_code read_attention(const fd_keys *r, const fd_arch *arch, fd_hparams *h) {
    int32_t value_dim;
    if (arch->reads & FD_READS_NO_ATTENTION) { /* files give 0 for both */
        h->n_head = h->n_head_kv = 1;
        h->head_dim = h->n_embd;
        FD_TRY(fd_key_i32(r, "attention.head_count", 0, 0, 4096, &value_dim));
        return fd_key_i32(r, "attention.head_count_kv", 0, 0, 4096, &value_dim);
    }
    if (arch->reads & FD_READS_LAYER_SIZES)
        FD_TRY(read_most(r, arch, "attention.head_count", h->n_layer, -1, 4096, &h->n_head));
    else
        FD_TRY(fd_key_i32(r, "attention.head_count", -1, 1, 4096, &h->n_head));
    if (h->n_head < 1) return fd_fail(r->err, FD_ERR_INPUT, "key %s.attention.head_count: missing", h->arch);
    if (arch->reads & (FD_READS_HYBRID | FD_READS_LAYER_SIZES))
        FD_TRY(read_most(r, arch, "attention.head_count_kv", h->n_layer, h->n_head, 4096, &h->n_head_kv));
    else
        FD_TRY(fd_key_i32(r, "attention.head_count_kv", h->n_head, 1, 4096, &h->n_head_kv));
    if (h->n_head % h->n_head_kv != 0)
        return fd_fail(r->err, FD_ERR_INPUT, "key %s.attention.head_count_kv: %d, expected a divisor of head_count %d",
                       h->arch, h->n_head_kv, h->n_head);
    if (arch->kv_each && h->n_head_kv != h->n_head)
        return fd_fail(r->err, FD_ERR_UNSUPPORTED, "key %s.attention.head_count_kv: %d, expected head_count %d",
                       h->arch, h->n_head_kv, h->n_head);
    FD_TRY(fd_key_i32(r, "attention.key_length", h->n_embd / h->n_head, 2, 4096, &h->head_dim));
    FD_TRY(fd_key_i32(r, "attention.value_length", h->n_embd / h->n_head, 2, 4096, &value_dim));
    if (value_dim != h->head_dim && !(arch->reads & FD_READS_VALUE_LENGTH))
        return fd_fail(r->err, FD_ERR_UNSUPPORTED,
                       "key %s.attention.value_length: %d, only key_length's %d is implemented", h->arch, value_dim,
                       h->head_dim);
    bool causal;
    FD_TRY(fd_key_bool(r, "attention.causal", true, &causal));
    if (!causal)
        return fd_fail(r->err, FD_ERR_UNSUPPORTED,
                       "key %s.attention.causal: false, only causal attention is implemented", r->arch);
    return FD_OK;
}

/* Files give 0 for a scale that they do not have. */
static fd_code read_scale(const fd_keys *r, const char *key, float *out) {
    double value;
    FD_TRY(fd_key_f64(r, key, 1.0, &value));
    *out = value == 0.0 ? 1.0f : (float)value;
    return FD_OK;
}

static fd_code read_experts(const fd_keys *r, const fd_arch *arch, fd_hparams *h) {
    if (!(arch->reads & FD_READS_EXPERTS)) return FD_OK;
    FD_TRY(fd_key_i32(r, "expert_count", 0, 0, 4096, &h->n_expert));
    if (h->n_expert == 0) return FD_OK;
    FD_TRY(fd_key_i32(r, "expert_used_count", -1, 1, h->n_expert, &h->n_expert_used));
    FD_TRY(fd_key_i32(r, "expert_feed_forward_length", 0, 0, 1 << 24, &h->n_ff_expert));
    if (h->n_ff_expert == 0) h->n_ff_expert = h->n_ff;
    FD_TRY(fd_key_i32(r, "expert_gating_func", 0, 0, 3, &h->expert_gating));
    FD_TRY(fd_key_i32(r, "expert_group_count", 0, 0, FD_MAX_GROUPS, &h->n_expert_group));
    FD_TRY(fd_key_i32(r, "expert_group_used_count", 0, 0, FD_MAX_GROUPS, &h->n_expert_group_used));
    if (arch->reads & FD_READS_EXPERT_NORM) FD_TRY(fd_key_bool(r, "expert_weights_norm", false, &h->expert_norm));
    if (arch->reads & FD_READS_DENSE_LAYERS)
        FD_TRY(fd_key_i32(r, "leading_dense_block_count", 0, 0, h->n_layer, &h->n_layer_dense));
    if (arch->reads & FD_READS_SHARED_EXPERTS) {
        int32_t n_shared;
        FD_TRY(fd_key_i32(r, "expert_shared_count", 0, 0, 4096, &n_shared));
        FD_TRY(fd_key_i32(r, "expert_shared_feed_forward_length", 0, 0, 1 << 24, &h->n_ff_shared));
        if (h->n_ff_shared == 0) h->n_ff_shared = n_shared * h->n_ff_expert;
    }
    h->expert_scale = 1.0f;
    return arch->reads & FD_READS_EXPERT_SCALE ? read_scale(r, "expert_weights_scale", &h->expert_scale) : FD_OK;
}

static fd_code read_cap(const fd_keys *r, const char *key, double fallback, float *out) {
    double value;
    FD_TRY(fd_key_f64(r, key, fallback, &value));
    if (!(value > 0.0))
        return fd_fail(r->err, FD_ERR_INPUT, "key %s.%s: %g, expected more than 0", r->arch, key, value);
    *out = (float)value;
    return FD_OK;
}

/* 0 or missing: none. */
static fd_code read_positive(const fd_keys *r, const char *key, float *out) {
    double value;
    FD_TRY(fd_key_f64(r, key, 0.0, &value));
    if (!(value >= 0.0))
        return fd_fail(r->err, FD_ERR_INPUT, "key %s.%s: %g, expected no less than 0", r->arch, key, value);
    *out = (float)value;
    return FD_OK;
}

static fd_code read_extras(const fd_keys *r, const fd_arch *arch, fd_hparams *h) {
    if (arch->reads & FD_READS_SOFTCAPS) {
        FD_TRY(read_cap(r, "attn_logit_softcapping", 50.0, &h->attn_softcap));
        FD_TRY(read_cap(r, "final_logit_softcapping", 30.0, &h->final_softcap));
    }
    if (arch->reads & FD_READS_CLAMP) FD_TRY(read_positive(r, "attention.clamp_kqv", &h->clamp_qkv));
    if (arch->reads & FD_READS_ALIBI) FD_TRY(read_positive(r, "attention.max_alibi_bias", &h->max_alibi_bias));
    if (arch->reads & FD_READS_LOGIT_SCALE) FD_TRY(read_scale(r, "logit_scale", &h->logit_scale));
    if (arch->reads & FD_READS_PARALLEL) FD_TRY(fd_key_bool(r, "use_parallel_residual", true, &h->parallel_residual));
    if (arch->reads & FD_READS_TEMPERATURE) {
        FD_TRY(read_positive(r, "attention.temperature_scale", &h->temperature_scale));
        FD_TRY(fd_key_i32(r, "attention.temperature_length", 0, 0, INT32_MAX, &h->temperature_length));
        if (h->temperature_length == 0) h->temperature_length = (int32_t)fmin(h->rope.original_context, INT32_MAX);
    }
    if (arch->reads & FD_READS_SCALES) {
        FD_TRY(read_scale(r, "embedding_scale", &h->embedding_scale));
        FD_TRY(read_scale(r, "residual_scale", &h->residual_scale));
        FD_TRY(read_scale(r, "logit_scale", &h->logit_scale));
    }
    if (arch->reads & FD_READS_ATTENTION_SCALE) {
        double scale;
        FD_TRY(fd_key_f64(r, "attention.scale", 0.0, &scale));
        h->attn_scale = (float)scale;
    }
    h->rope_used = true;
    if (arch->reads & FD_READS_ROPE_SWITCH) FD_TRY(fd_key_bool(r, "rope.scaling.finetuned", true, &h->rope_used));
    return FD_OK;
}

/* The file's last layers, which predict further tokens, are not run. */
static fd_code skip_further_tokens(const fd_keys *r, fd_hparams *h) {
    int32_t n_further;
    FD_TRY(fd_key_i32(r, "nextn_predict_layers", 0, 0, h->n_layer - 1, &n_further));
    h->n_layer -= n_further;
    return FD_OK;
}

/* The vocabulary is what the embedding has rows for; the key is often absent or padded. */
static fd_code read_vocabulary(const fd_keys *r, fd_hparams *h) {
    const fd_gguf_tensor *embd = fd_gguf_find_tensor(r->gguf, "token_embd.weight");
    if (!embd && fd_key_find(r, "vocab_size")) return fd_key_i32(r, "vocab_size", -1, 1, 1 << 24, &h->n_vocab);
    if (!embd) return fd_fail(r->err, FD_ERR_INPUT, "weight token_embd.weight: missing");
    if (embd->n_dim != 2 || embd->shape[1] < 1 || embd->shape[1] > (1 << 24))
        return fd_fail(r->err, FD_ERR_INPUT,
                       "weight token_embd.weight: %d dimensions and %lld rows, expected [vocabulary, %d]", embd->n_dim,
                       (long long)embd->shape[1], h->n_embd);
    h->n_vocab = (int32_t)embd->shape[1];
    return FD_OK;
}

fd_code fd_hparams_read(const fd_keys *r, const fd_arch *arch, fd_hparams *h) {
    const fd_gguf *gguf = r->gguf;
    fd_error *err = r->err;
    memset(h, 0, sizeof *h);
    snprintf(h->arch, sizeof h->arch, "%s", arch->name);
    fd_string name;
    FD_TRY(fd_gguf_get_string(gguf, "general.name", &name, err));
    if (name.data) snprintf(h->name, sizeof h->name, "%.*s", (int)(name.size < 127 ? name.size : 127), name.data);

    FD_TRY(fd_key_i32(r, "block_count", -1, 1, 4096, &h->n_layer));
    FD_TRY(fd_key_i32(r, "embedding_length", -1, 1, 1 << 20, &h->n_embd));
    const bool attends = !(arch->reads & FD_READS_NO_ATTENTION);
    if (arch->reads & (FD_READS_HYBRID | FD_READS_LAYER_SIZES))
        FD_TRY(read_most(r, arch, "feed_forward_length", h->n_layer, 0, 1 << 24, &h->n_ff));
    else
        FD_TRY(fd_key_i32(r, "feed_forward_length", attends ? -1 : 0, attends, 1 << 24, &h->n_ff));
    FD_TRY(fd_key_i32(r, "context_length", -1, 1, INT32_MAX, &h->n_ctx_train));
    FD_TRY(read_attention(r, arch, h));
    h->rope_rows_kept = arch->rope_rows_kept;
    if (attends) FD_TRY(fd_rope_read(r, arch, h));

    const char *eps_key =
        arch->norm == FD_NORM_RMS ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
    double eps;
    h->norm = arch->norm;
    FD_TRY(fd_key_f64(r, eps_key, -1.0, &eps));
    if (!(eps >= 0.0)) return fd_fail(err, FD_ERR_INPUT, "key %s.%s: missing or negative", h->arch, eps_key);
    h->rms_eps = (float)eps;

    FD_TRY(read_experts(r, arch, h));
    FD_TRY(read_extras(r, arch, h));
    FD_TRY(skip_further_tokens(r, h));
    return read_vocabulary(r, h);
}
