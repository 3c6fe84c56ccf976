/* The keys that may go unread, each with the reason why it changes nothing. llama.cpp writes most of its
 * hyperparameters into every file that it saves, at the value that means "none": those rows say NOTHING. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/keys.h"

typedef enum harmless {
    ANY_VALUE,         /* says something about the file, or about parts that generating text does not use */
    NOTHING,           /* 0, false, an empty string, or an array of 0 or -1 alone */
    ONE,               /* a factor: 1, or 0 for none */
    THIS_VALUE,        /* llama.cpp's default, which its saver writes for architectures that do not use it */
    OF_WINDOWS,        /* of layers with a sliding window: there are none, or it equals the key for all layers */
    WIDE_WINDOW,       /* positions: 0, or no fewer than the context has */
    OF_EXPERTS,        /* there are none, or it says nothing */
    OF_NORMED_WEIGHTS, /* there are no experts, or their weights are divided by their sum anyway */
    OF_SCORES,         /* the scale that every layer's scores have anyway, or 0 */
    OF_RMS_NORMS,      /* there are none: converters write the epsilon of nemotron's LayerNorm under both names */
    OF_LAYER_NORMS,
    OF_ROPE_SCALING, /* only scalings that this file does not name read it */
} harmless;

static const struct {
    const char *name; /* ends with ".*": every key below */
    harmless when;
    double value;       /* THIS_VALUE */
    const char *equals; /* OF_WINDOWS: the key for all layers */
} rows[] = {
    {.name = "vocab_size", .when = ANY_VALUE}, /* the embedding's rows say it */
    {.name = "tensor_data_layout", .when = ANY_VALUE},
    {.name = "pooling_type", .when = ANY_VALUE},
    {.name = "classifier.output_labels", .when = ANY_VALUE},
    {.name = "embedding_length_out", .when = ANY_VALUE},
    {.name = "features_length", .when = ANY_VALUE},
    {.name = "decoder_start_token_id", .when = ANY_VALUE},
    {.name = "vision.*", .when = ANY_VALUE},
    {.name = "mm.*", .when = ANY_VALUE},
    {.name = "rope.scaling.finetuned", .when = ANY_VALUE},
    {.name = "rope.scaling.original_context_length", .when = OF_ROPE_SCALING},
    {.name = "rope.scaling.low_freq_factor", .when = OF_ROPE_SCALING},
    {.name = "rope.scaling.high_freq_factor", .when = OF_ROPE_SCALING},
    {.name = "rope.scaling.yarn_log_multiplier", .when = OF_ROPE_SCALING},
    {.name = "rope.scaling.yarn_ext_factor", .when = OF_ROPE_SCALING},
    {.name = "rope.scaling.yarn_attn_factor", .when = OF_ROPE_SCALING},
    {.name = "rope.scaling.yarn_beta_fast", .when = OF_ROPE_SCALING},
    {.name = "rope.scaling.yarn_beta_slow", .when = OF_ROPE_SCALING},
    {.name = "rope.dimension_count_swa", .when = OF_WINDOWS, .equals = "rope.dimension_count"},
    {.name = "rope.freq_base_swa", .when = OF_WINDOWS, .equals = "rope.freq_base"},
    {.name = "attention.key_length_swa", .when = OF_WINDOWS, .equals = "attention.key_length"},
    {.name = "attention.value_length_swa", .when = OF_WINDOWS, .equals = "attention.value_length"},
    {.name = "attention.sliding_window", .when = WIDE_WINDOW},
    {.name = "attention.sliding_window_pattern", .when = NOTHING},
    {.name = "attention.scale", .when = OF_SCORES},
    {.name = "attention.output_scale", .when = ONE},
    {.name = "attention.value_scale", .when = ONE},
    {.name = "logit_scale", .when = ONE},
    {.name = "residual_scale", .when = ONE},
    {.name = "embedding_scale", .when = ONE},
    {.name = "attn_logit_softcapping", .when = THIS_VALUE, .value = 50},
    {.name = "final_logit_softcapping", .when = THIS_VALUE, .value = 30},
    {.name = "router_logit_softcapping", .when = THIS_VALUE, .value = 30},
    {.name = "token_shift_count", .when = THIS_VALUE, .value = 2},
    {.name = "expert_group_scale", .when = THIS_VALUE, .value = 0.05},
    {.name = "expert_used_count", .when = OF_EXPERTS},
    {.name = "expert_feed_forward_length", .when = OF_EXPERTS},
    {.name = "expert_shared_feed_forward_length", .when = OF_EXPERTS},
    {.name = "expert_chunk_feed_forward_length", .when = OF_EXPERTS},
    {.name = "expert_weights_scale", .when = ANY_VALUE}, /* llama.cpp reads it where fd_arch.reads says so, alone */
    {.name = "expert_weights_norm", .when = OF_NORMED_WEIGHTS},
    {.name = "expert_gating_func", .when = OF_EXPERTS},
    {.name = "expert_shared_count", .when = OF_EXPERTS},
    {.name = "expert_group_count", .when = ONE},
    {.name = "expert_group_used_count", .when = ONE},
    {.name = "experts_per_group", .when = OF_EXPERTS},
    {.name = "moe_every_n_layers", .when = OF_EXPERTS},
    {.name = "interleave_moe_layer_step", .when = OF_EXPERTS},
    {.name = "leading_dense_block_count", .when = OF_EXPERTS},
    {.name = "expert_count", .when = NOTHING},
    {.name = "moe_latent_size", .when = NOTHING},
    {.name = "use_parallel_residual", .when = NOTHING},
    {.name = "n_deepstack_layers", .when = NOTHING},
    {.name = "deepstack_mapping", .when = NOTHING},
    {.name = "decoder_block_count", .when = NOTHING},
    {.name = "swin_norm", .when = NOTHING},
    {.name = "rescale_every_n_layers", .when = NOTHING},
    {.name = "time_mix_extra_dim", .when = NOTHING},
    {.name = "time_decay_extra_dim", .when = NOTHING},
    {.name = "swiglu_clamp_exp", .when = NOTHING},
    {.name = "swiglu_clamp_shexp", .when = NOTHING},
    {.name = "full_attention_interval", .when = NOTHING},
    {.name = "embedding_length_per_layer_input", .when = NOTHING},
    {.name = "dense_2_feat_in", .when = NOTHING},
    {.name = "dense_2_feat_out", .when = NOTHING},
    {.name = "dense_3_feat_in", .when = NOTHING},
    {.name = "dense_3_feat_out", .when = NOTHING},
    {.name = "rope.dimension_sections", .when = NOTHING},
    {.name = "attention.max_alibi_bias", .when = NOTHING},
    {.name = "attention.clamp_kqv", .when = NOTHING},
    {.name = "attention.layer_norm_epsilon", .when = OF_LAYER_NORMS},
    {.name = "attention.layer_norm_rms_epsilon", .when = OF_RMS_NORMS},
    {.name = "attention.group_norm_epsilon", .when = NOTHING},
    {.name = "attention.group_norm_groups", .when = NOTHING},
    {.name = "attention.q_lora_rank", .when = NOTHING},
    {.name = "attention.kv_lora_rank", .when = NOTHING},
    {.name = "attention.decay_lora_rank", .when = NOTHING},
    {.name = "attention.iclr_lora_rank", .when = NOTHING},
    {.name = "attention.value_residual_mix_lora_rank", .when = NOTHING},
    {.name = "attention.gate_lora_rank", .when = NOTHING},
    {.name = "attention.relative_buckets_count", .when = NOTHING},
    {.name = "attention.temperature_length", .when = NOTHING},
    {.name = "attention.temperature_scale", .when = NOTHING},
    {.name = "attention.key_length_mla", .when = NOTHING},
    {.name = "attention.value_length_mla", .when = NOTHING},
    {.name = "attention.shared_kv_layers", .when = NOTHING},
    {.name = "attention.recurrent_layers", .when = NOTHING},
    {.name = "attention.indexer.*", .when = NOTHING},
    {.name = "ssm.*", .when = NOTHING},
    {.name = "kda.*", .when = NOTHING},
    {.name = "wkv.*", .when = NOTHING},
    {.name = "shortconv.*", .when = NOTHING},
    {.name = "posnet.*", .when = NOTHING},
    {.name = "convnext.*", .when = NOTHING},
};

static bool says_nothing(const fd_gguf_kv *kv) {
    if (kv->item_type == FD_GGUF_STRING) {
        size_t cursor = 0;
        fd_string text;
        while (fd_gguf_next_string(kv, &cursor, &text))
            if (text.size > 0) return false;
        return true;
    }
    for (uint64_t i = 0; i < kv->count; i++) {
        double value;
        int64_t flag;
        bool number = fd_gguf_item_f64(kv, i, &value);
        if (!number && fd_gguf_item_i64(kv, i, &flag)) number = true, value = (double)flag;
        if (!number || !(value == 0 || (value == -1 && kv->type == FD_GGUF_ARRAY))) return false;
    }
    return true;
}

static bool near(double a, double b) {
    return fabs(a - b) <= 1e-6 * fabs(b);
}

static bool every_scale_is(const fd_graph *graph, double scale) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_ATTN_SCORES && !near(scale, (double)graph->nodes[i].scale)) return false;
    return true;
}

static bool every_weight_is_normed(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == FD_OP_EXPERT_WEIGHTS && graph->nodes[i].gating != FD_GATING_NORMALISED) return false;
    return true;
}

static bool has_op(const fd_graph *graph, fd_op op) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].op == op) return true;
    return false;
}

static bool has_window(const fd_graph *graph) {
    for (int32_t i = 0; i < graph->n_node; i++)
        if (graph->nodes[i].window > 0) return true;
    return false;
}

static bool equals_key(const fd_keys *keys, const char *name, double value) {
    char full[128];
    double other;
    snprintf(full, sizeof full, "%s.%s", keys->arch, name);
    const fd_gguf_kv *kv = fd_gguf_find(keys->gguf, full);
    return kv && fd_gguf_item_f64(kv, 0, &other) && other == value;
}

static bool changes_nothing(const fd_keys *keys, const fd_graph *graph, const fd_gguf_kv *kv, size_t row) {
    double value;
    bool number = fd_gguf_item_f64(kv, 0, &value) && kv->type != FD_GGUF_ARRAY;
    if (says_nothing(kv)) return true;
    switch (rows[row].when) {
    case ANY_VALUE: return true;
    case NOTHING: return false;
    case ONE: return number && value == 1;
    case THIS_VALUE: return number && near(value, rows[row].value);
    case OF_WINDOWS: return !has_window(graph) || (number && equals_key(keys, rows[row].equals, value));
    case WIDE_WINDOW: return number && value >= graph->hparams.n_ctx_train;
    case OF_NORMED_WEIGHTS: return every_weight_is_normed(graph);
    case OF_EXPERTS: return graph->hparams.n_expert == 0;
    case OF_SCORES: return number && every_scale_is(graph, value);
    case OF_RMS_NORMS: return !has_op(graph, FD_OP_RMS_NORM);
    case OF_LAYER_NORMS: return !has_op(graph, FD_OP_LAYER_NORM);
    case OF_ROPE_SCALING: return true; /* the scaling's own reader has read what it needs */
    }
    return false;
}

static bool is_row(const char *name, size_t size, size_t row) {
    size_t length = strlen(rows[row].name);
    if (rows[row].name[length - 1] == '*') return size > length - 1 && memcmp(name, rows[row].name, length - 1) == 0;
    return size == length && memcmp(name, rows[row].name, length) == 0;
}

static bool is_harmless(const fd_keys *keys, const fd_graph *graph, const fd_gguf_kv *kv, size_t prefix) {
    for (size_t row = 0; row < sizeof rows / sizeof *rows; row++)
        if (is_row(kv->key.data + prefix, kv->key.size - prefix, row)) return changes_nothing(keys, graph, kv, row);
    return false;
}

static void value_text(const fd_gguf_kv *kv, char *to, size_t size) {
    double number;
    int64_t flag;
    size_t cursor = 0;
    fd_string text;
    if (kv->type == FD_GGUF_ARRAY)
        snprintf(to, size, "an array of %llu", (unsigned long long)kv->count);
    else if (kv->type == FD_GGUF_BOOL && fd_gguf_item_i64(kv, 0, &flag))
        snprintf(to, size, "%s", flag ? "true" : "false");
    else if (fd_gguf_item_f64(kv, 0, &number))
        snprintf(to, size, "%.9g", number);
    else if (fd_gguf_next_string(kv, &cursor, &text))
        snprintf(to, size, "\"%.*s\"", (int)(text.size < 32 ? text.size : 32), text.data);
}

fd_code fd_keys_check(const fd_keys *keys, const fd_graph *graph) {
    size_t prefix = strlen(keys->arch) + 1;
    for (size_t i = 0; i < fd_gguf_n_kv(keys->gguf); i++) {
        const fd_gguf_kv *kv = fd_gguf_kv_at(keys->gguf, i);
        bool ours = kv->key.size > prefix && memcmp(kv->key.data, keys->arch, prefix - 1) == 0 &&
                    kv->key.data[prefix - 1] == '.';
        if (!ours || keys->read[i] || is_harmless(keys, graph, kv, prefix)) continue;
        char value[64] = "";
        value_text(kv, value, sizeof value);
        return fd_fail(keys->err, FD_ERR_UNSUPPORTED,
                       "key %.*s: %s; the %s graph does not read it, and it may change the arithmetic",
                       (int)(kv->key.size < 96 ? kv->key.size : 96), kv->key.data, value, keys->arch);
    }
    return FD_OK;
}
