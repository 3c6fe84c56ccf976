/* qwen3 and qwen3moe: as qwen2 without its biases, but the heads of Q and K are normed before they are rotated. The
 * mixture's experts are weighted by their share of the chosen ones' probabilities. */
#include "model/builder.h"

static void list_with(fd_builder *b, bool experts) {
    fd_attention_block attention = {.qkv_bias = FD_OPTIONAL, .qk_norm = true, .rope_freqs = FD_NO_ROPE_FACTORS};
    const fd_experts_block how = {.gating = FD_GATING_NORMALISED, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    int32_t x = fd_build_embed(b, "token_embd");
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, &attention);
        int32_t norm = fd_build_rms_norm(b, layer, "ffn_norm", "ffn_norm", x);
        int32_t ffn = experts ? fd_build_experts(b, layer, norm, &how) : fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL);
        x = fd_build_add(b, layer, "l_out", x, ffn);
    }
    fd_build_logits(b, x);
}

static void list(fd_builder *b) {
    list_with(b, false);
}
static void list_experts(fd_builder *b) {
    list_with(b, true);
}

const fd_arch fd_arch_qwen3 = {"qwen3", FD_ROPE_HALF, list, 0};
const fd_arch fd_arch_qwen3moe = {
    .name = "qwen3moe",
    .rope_pairing = FD_ROPE_HALF,
    .list = list_experts,
    .reads = FD_READS_EXPERTS | FD_READS_EXPERT_NORM,
    .made_keys = "expert_count=4 expert_used_count=2 expert_feed_forward_length=256 expert_weights_norm=true",
};
