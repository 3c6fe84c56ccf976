/* llama4: Llama 4. Of four layers three rotate Q and K, norm their heads without weights (not in Maverick, of 128
 * experts) and attend within chunks of 8192 positions; the fourth has no rotation, sees everything, and multiplies Q by
 * a temperature that rises every 8192 positions. One expert a token, whose input is times a sigmoid of its logit, and a
 * shared one, in every interleave_moe_layer_step-th layer.
 * Source: Meta, Llama 4, 2025, and transformers' Llama4TextModel. */
#include "model/builder.h"

enum { CHUNK = 8192, PERIOD = 4, MAVERICK = 128 };

static int32_t expert(fd_builder *b, int32_t layer, int32_t x) {
    const fd_hparams *h = b->h;
    const fd_experts_block how = {.sigmoid = true, .activation = FD_OP_SILU_MUL, .bias = FD_OPTIONAL};
    int32_t probs = fd_build_matmul(b, layer, "ffn_moe_logits", "ffn_gate_inp", x, h->n_expert, FD_OPTIONAL);
    probs = fd_build_activation(b, layer, "ffn_moe_probs", FD_OP_SIGMOID, probs);
    int32_t id = fd_build_top_k(b, layer, probs);
    int32_t weight = fd_build_expert_weights(b, layer, "ffn_moe_weights", probs, id, FD_GATING_GATHER);
    int32_t row = fd_build_one_head(b, fd_build_slice(b, layer, "ffn_moe_x", x, 0, h->n_embd)); /* one expert's */
    int32_t in = fd_build_mul(b, layer, "ffn_moe_in", row, weight);
    int32_t gate =
        fd_build_expert_matmul(b, layer, "ffn_moe_gate", "ffn_gate_exps", in, id, h->n_ff_expert, FD_OPTIONAL);
    int32_t up = fd_build_expert_matmul(b, layer, "ffn_moe_up", "ffn_up_exps", in, id, h->n_ff_expert, FD_OPTIONAL);
    int32_t act = fd_build_gated(b, layer, "ffn_moe_act", FD_OP_SILU_MUL, gate, up);
    int32_t out = fd_build_expert_matmul(b, layer, "ffn_moe_out", "ffn_down_exps", act, id, h->n_embd, FD_OPTIONAL);
    return fd_build_shared_experts(b, layer, x, out, &how);
}

/* What the constants above stand for must be so in the file. */
static int32_t read_step(fd_builder *b) {
    int32_t step = 1, window = CHUNK;
    fd_code code = fd_key_i32(b->keys, "interleave_moe_layer_step", 1, 1, 4096, &step);
    if (code == FD_OK) code = fd_key_i32(b->keys, "attention.sliding_window", CHUNK, CHUNK, CHUNK, &window);
    if (code == FD_OK && b->h->n_layer < PERIOD) /* llama.cpp ends where no layer has the temperature */
        code = fd_fail(b->err, FD_ERR_INPUT, "key llama4.block_count: %d, expected at least %d", b->h->n_layer, PERIOD);
    if (code == FD_OK && b->h->n_expert_used != 1)
        code = fd_fail(b->err, FD_ERR_UNSUPPORTED, "key llama4.expert_used_count: %d, expected 1", b->h->n_expert_used);
    if (code != FD_OK) fd_builder_set_error(b, code);
    return step;
}

static void list(fd_builder *b) {
    const int32_t step = read_step(b);
    fd_attention_block local = {.qkv_bias = FD_OPTIONAL,
                                .qk_unit_norm = b->h->n_expert != MAVERICK,
                                .no_temperature = true,
                                .window = CHUNK,
                                .chunked = true};
    const fd_rope of_local = fd_rope_of_windows(b, b->h->rope.base, true);
    local.rope = &of_local;
    local.rope_freqs = fd_build_rope_factors(b);
    const fd_attention_block global = {
        .qkv_bias = FD_OPTIONAL, .rope_freqs = FD_NO_ROPE_FACTORS, .no_rope = true, .temperature_first = 1};
    b->graph->hparams.n_ff_shared = b->h->n_ff_expert;
    b->graph->hparams.temperature_scale = 0.1f;
    b->graph->hparams.temperature_length = CHUNK;
    int32_t x = fd_build_embed(b);
    for (int32_t layer = 0; layer < b->h->n_layer; layer++) {
        x = fd_build_pre_norm_attention(b, layer, x, (layer + 1) % PERIOD == 0 ? &global : &local);
        int32_t norm = fd_build_norm(b, layer, "ffn_norm", "ffn_norm", x);
        int32_t ffn = (layer + 1) % step == 0 ? expert(b, layer, norm) : fd_build_ffn(b, layer, norm, FD_OP_SILU_MUL);
        x = fd_build_add(b, layer, "l_out", x, ffn);
    }
    fd_build_logits(b, x);
}

const fd_arch fd_arch_llama4 = {
    .name = "llama4",
    .rope_pairing = FD_ROPE_INTERLEAVED,
    .list = list,
    .reads = FD_READS_EXPERTS,
    .norm = FD_NORM_RMS,
    .made_keys = "block_count=4 interleave_moe_layer_step=2 expert_count=4 expert_used_count=1 "
                 "expert_feed_forward_length=256",
};
