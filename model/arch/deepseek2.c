/* deepseek2: DeepSeek V2, V3 and R1, Kimi K2; mistral4: the same. Attention over a compressed K and V (mla.c), experts as
 * glm4moe's, chosen from the best groups alone where the file has groups.
 * Source: DeepSeek-AI, DeepSeek-V2, 2024, and DeepSeek-V3 (modeling_deepseek.py of both). */
#include <math.h>

#include "model/builder.h"

/* YaRN's factor on cos and sin reaches only the rotated elements; the scale of the scores has it for all, twice, and
 * so has the multiplier's (rope.scaling.yarn_log_multiplier: a tenth of the paper's mscale). */
static float score_scale(fd_builder *b, int32_t n_key) {
    const fd_rope *rope = &b->h->rope;
    double multiplier = 0;
    fd_code code = fd_key_f64(b->keys, "rope.scaling.yarn_log_multiplier", 0, &multiplier);
    if (code != FD_OK) fd_builder_set_error(b, code);
    double factor = rope->attention_factor;
    if (rope->scaling == FD_ROPE_SCALING_YARN)
        factor *= 1 + multiplier * log(rope->factor);
    else if (rope->scaling != FD_ROPE_SCALING_NONE)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED,
                                        "key %s.rope.scaling.type: %s, only yarn is implemented", b->h->arch,
                                        fd_rope_scaling_name(rope->scaling)));
    return (float)(factor * factor / sqrt(n_key));
}

/* Files of GLM 4.7 Flash, told by its layers and vocabulary, that do not say how they gate. */
static bool is_glm_lite(const fd_hparams *h) {
    return h->expert_gating == 0 && (h->n_layer == 47 || h->n_layer == 48) && h->n_vocab == 154880;
}

static void list(fd_builder *b) {
    fd_mla m = fd_read_mla(b);
    if (b->h->n_layer == 26 || b->h->n_layer == 27) m.q_rank = 0; /* V2 Lite and its kin, whatever the file says */
    m.how.scale = score_scale(b, m.n_nope + m.n_rope);
    fd_experts_block experts = fd_experts_of_file(b);
    if (is_glm_lite(b->h)) experts.sigmoid = true;
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        int32_t norm = fd_build_norm(b, layer, "attn_norm", "attn_norm", x);
        x = fd_build_add(b, layer, "ffn_inp", x, fd_build_mla(b, layer, norm, &m));
        norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        x = fd_build_add(b, layer, "l_out", x, fd_build_mixture(b, layer, norm, &experts));
    }
    fd_build_logits(b, x);
}

#define ARCH(of_name)                                                                                                  \
    {                                                                                                                  \
        .name = of_name, .rope_pairing = FD_ROPE_INTERLEAVED, .rope_rows_kept = true, .list = list,                    \
        .reads = FD_READS_EXPERTS | FD_READS_EXPERT_SCALE | FD_READS_EXPERT_NORM | FD_READS_SHARED_EXPERTS |           \
                 FD_READS_DENSE_LAYERS | FD_READS_TEMPERATURE | FD_READS_VALUE_LENGTH | FD_READS_YARN_LOG_TENTH,       \
        .norm = FD_NORM_RMS,                                                                                           \
        .made_keys =                                                                                                   \
            "block_count=3 attention.head_count_kv=1 leading_dense_block_count=1 attention.q_lora_rank=96 "            \
            "attention.kv_lora_rank=64 attention.key_length=80 attention.value_length=64 "                             \
            "attention.key_length_mla=48 attention.value_length_mla=40 rope.dimension_count=16 expert_count=8 "        \
            "expert_used_count=3 expert_feed_forward_length=256 expert_shared_count=1 expert_gating_func=2 "           \
            "expert_weights_norm=true expert_weights_scale=2.5 expert_group_count=4 expert_group_used_count=2",        \
        .made_with = "exp_probs_b.bias",                                                                               \
    }

const fd_arch fd_arch_deepseek2 = ARCH("deepseek2");
const fd_arch fd_arch_mistral4 = ARCH("mistral4");
