#include "cli/against/names.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names as modelling code has them, without what stands before (model., transformer., …) and without .weight or .bias;
 * the first that is there counts; a row of a tensor with its suffix stands before that of all others. "a+b": rows of a, then rows of b; "%e": of each expert. A name that ends in "!" takes
 * no suffix. Sources: the modelling files of transformers. */
static const struct {
    const char *tensor, *names;
} globals[] =
    {
        {"token_embd", "embed_tokens wte word_embeddings embed_in tok_embeddings embeddings embedding"},
        {"token_embd_norm", "word_embeddings_layernorm embedding_norm layers.0.pre_norm"},
        {"position_embd", "wpe"},
        {"output_norm", "norm ln_f final_layernorm final_layer_norm norm_f"},
        {"output", "lm_head embed_out output output_layer embed_tokens wte word_embeddings"},
},
  layers[] = {
      {"attn_norm", "input_layernorm ln_1 ln_mlp norm_1 attention_norm attn_norm operator_norm ln norm"},
      {"attn_norm_2", "ln_attn ffn_norm"},
      {"attn_q", "self_attn.q_proj attention.wq attn.attention.q_proj mixer.q_proj"},
      {"attn_k", "self_attn.k_proj attention.wk attn.attention.k_proj mixer.k_proj"},
      {"attn_v", "self_attn.v_proj attention.wv attn.attention.v_proj mixer.v_proj"},
      {"attn_qkv", "attention.query_key_value self_attention.query_key_value attn.c_attn attn.Wqkv self_attn.qkv_proj "
                   "self_attn.query_key_value linear_attn.in_proj_qkvz linear_attn.in_proj_qkv "
                   "self_attn.q_proj+self_attn.k_proj+self_attn.v_proj"},
      {"attn_gate", "linear_attn.in_proj_qkvz linear_attn.in_proj_z"},
      {"attn_output", "self_attn.o_proj self_attn.dense self_attn.out_proj attention.dense self_attention.dense "
                      "attn.c_proj attn.out_proj attention.wo attn.attention.out_proj mixer.o_proj"},
      {"attn_q_norm", "self_attn.q_norm self_attn.q_layernorm self_attn.query_layernorm attention.query_layernorm"},
      {"attn_k_norm", "self_attn.k_norm self_attn.k_layernorm self_attn.key_layernorm attention.key_layernorm"},
      {"attn_sinks", "self_attn.sinks!"},
      {"attn_q_a", "self_attn.q_a_proj"},
      {"attn_q_a_norm", "self_attn.q_a_layernorm"},
      {"attn_q_b", "self_attn.q_b_proj"},
      {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
      {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
      {"attn_kv_b", "self_attn.kv_b_proj"},
      {"attn_k_b", "self_attn.kv_b_proj"},
      {"attn_v_b", "self_attn.kv_b_proj"},
      {"ssm_in", "mixer.in_proj mamba.in_proj"},
      {"ssm_conv1d", "mixer.conv1d mamba.conv1d linear_attn.conv1d"},
      {"ssm_x", "mixer.x_proj mamba.x_proj"},
      {"ssm_dt_norm", "mamba.dt_layernorm"},
      {"ssm_b_norm", "mamba.b_layernorm"},
      {"ssm_c_norm", "mamba.c_layernorm"},
      {"ssm_dt", "mixer.dt_proj mamba.dt_proj mixer.dt_bias! mamba.dt_bias! linear_attn.dt_bias!"},
      {"ssm_a", "mixer.A_log mamba.A_log linear_attn.A_log"},
      {"ssm_d", "mixer.D mamba.D"},
      {"ssm_norm", "mixer.norm mamba.norm linear_attn.norm"},
      {"ssm_out", "mixer.out_proj mamba.out_proj linear_attn.out_proj"},
      {"ssm_ba", "linear_attn.in_proj_ba"},
      {"ssm_alpha", "linear_attn.in_proj_a"},
      {"ssm_beta", "linear_attn.in_proj_b"},
      {"post_attention_norm", "post_self_attn_layernorm post_attention_layernorm"},
      {"shortconv.in_proj", "conv.in_proj"},
      {"shortconv.conv", "conv.conv"},
      {"shortconv.out_proj", "conv.out_proj"},
      {"ffn_norm", "pre_feedforward_layernorm pre_ff_layernorm post_attention_layernorm ln_2 norm_2 ffn_norm"},
      {"post_ffw_norm", "post_feedforward_layernorm post_mlp_layernorm"},
      {"ffn_gate", "mlp.gate_proj feed_forward.w1 feed_forward.gate_proj mlp.c_fc_0 mlp.w2"},
      {"ffn_up", "mlp.up_proj mlp.gate_up_proj feed_forward.w3 mlp.c_fc mlp.dense_h_to_4h ffn.up_proj mlp.fc1 "
                 "mlp.c_fc_1 mlp.w1 feed_forward.up_proj mixer.up_proj"},
      {"ffn_down", "mlp.down_proj feed_forward.w2 mlp.c_proj mlp.dense_4h_to_h ffn.down_proj mlp.fc2 "
                   "feed_forward.down_proj mixer.down_proj"},
      {"ffn_gate_inp", "mlp.gate mlp.gate.wg block_sparse_moe.gate mlp.router block_sparse_moe.router.layer "
                       "feed_forward.gate feed_forward.router mixer.gate"},
      {"ffn_gate_exps.bias", "mlp.experts.gate_up_proj_bias!"},
      {"ffn_gate_exps", "mlp.experts.%e.gate_proj block_sparse_moe.experts.%e.w1 feed_forward.experts.%e.w1 "
                        "feed_forward.experts.%e.gate_proj mixer.experts.%e.gate_proj "
                        "mlp.experts.gate_up_proj_blocks!+mlp.experts.gate_up_proj_scales! mlp.experts.gate_up_proj!"},
      {"ffn_up_exps.bias", "mlp.experts.gate_up_proj_bias!"},
      {"ffn_up_exps", "mlp.experts.%e.up_proj block_sparse_moe.experts.%e.w3 feed_forward.experts.%e.w3 "
                      "feed_forward.experts.%e.up_proj mixer.experts.%e.up_proj "
                      "mlp.experts.gate_up_proj_blocks!+mlp.experts.gate_up_proj_scales! mlp.experts.gate_up_proj!"},
      {"ffn_down_exps.bias", "mlp.experts.down_proj_bias!"},
      {"ffn_down_exps", "mlp.experts.%e.down_proj block_sparse_moe.experts.%e.w2 feed_forward.experts.%e.w2 "
                        "feed_forward.experts.%e.down_proj mixer.experts.%e.down_proj "
                        "mlp.experts.down_proj_blocks!+mlp.experts.down_proj_scales! mlp.experts.down_proj!"},
      {"ffn_gate_shexp", "mlp.shared_expert.gate_proj mlp.shared_experts.gate_proj mlp.shared_mlp.gate_proj"},
      {"ffn_up_shexp", "mlp.shared_expert.up_proj mlp.shared_experts.up_proj mlp.shared_mlp.up_proj"
                       " mixer.shared_experts.up_proj"},
      {"ffn_down_shexp", "mlp.shared_expert.down_proj mlp.shared_experts.down_proj mlp.shared_mlp.down_proj"
                         " mixer.shared_experts.down_proj"},
      {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
      {"exp_probs_b",
       "mlp.gate.e_score_correction_bias! mlp.gate.expert_bias! block_sparse_moe.e_score_correction_bias! "
       "mlp.moe_statics.e_score_correction_bias! feed_forward.expert_bias! "
       "mixer.gate.e_score_correction_bias!"},
      {"time_mix_lerp_fused", "attn.x_r!+attn.x_w!+attn.x_k!+attn.x_v!+attn.x_a!+attn.x_g! attn.x_x!"},
      {"time_mix_w0", "attn.w_lora.lora.2.bias!"},
      {"time_mix_w1", "attn.w_lora.lora.0"},
      {"time_mix_w2", "attn.w_lora.lora.2"},
      {"time_mix_a0", "attn.a_lora.lora.2.bias!"},
      {"time_mix_a1", "attn.a_lora.lora.0"},
      {"time_mix_a2", "attn.a_lora.lora.2"},
      {"time_mix_v0", "attn.v_lora.lora.2.bias!"},
      {"time_mix_v1", "attn.v_lora.lora.0"},
      {"time_mix_v2", "attn.v_lora.lora.2"},
      {"time_mix_g1", "attn.g_lora.lora.0"},
      {"time_mix_g2", "attn.g_lora.lora.2"},
      {"time_mix_k_k", "attn.k_k!"},
      {"time_mix_k_a", "attn.k_a!"},
      {"time_mix_r_k", "attn.r_k!"},
      {"time_mix_key", "attn.k_proj"},
      {"time_mix_value", "attn.v_proj"},
      {"time_mix_receptance", "attn.r_proj"},
      {"time_mix_output", "attn.o_proj"},
      {"time_mix_ln", "attn.g_norm"},
      {"channel_mix_lerp_k", "ffn.x_k!"},
      {"channel_mix_key", "ffn.key"},
      {"channel_mix_value", "ffn.value"},
};

static const char *const of_layer[] = {"layers.%d.", "h.%d.", "blocks.%d.", "layers.layers.%d."};

/* Or of parts that text does not go through. */
bool fd_against_is_buffer(const char *name) {
    static const char *const buffers[] = {"*inv_freq",
                                          "*.attn.bias",
                                          "*.attention.bias",
                                          "*masked_bias",
                                          "visual.*",
                                          "vision_tower.*",
                                          "multi_modal_projector.*",
                                          "mtp.*",
                                          "layers.0.attn.v_lora.*"}; /* rwkv7's first layer has no v to mix in */
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++)
        if (fnmatch(buffers[i], name, 0) == 0) return true;
    return false;
}

bool fd_against_is_computed(const char *tensor) {
    return strncmp(tensor, "rope_f", 6) == 0 || fnmatch("blk.0.time_mix_v[012].weight", tensor, 0) == 0;
}

static fd_code add(fd_against_parts *parts, const fd_checkpoint_tensor *tensor, fd_error *err) {
    const fd_checkpoint_tensor **grown = realloc(parts->of, (parts->n + 1) * sizeof *grown);
    if (!grown) return fd_fail(err, FD_ERR_MEMORY, "out of memory");
    parts->of = grown;
    parts->of[parts->n++] = tensor;
    return FD_OK;
}

/* One name, "%e" in it standing for each expert in turn: *whole says whether it is there. */
static fd_code add_name(const fd_checkpoint *checkpoint, const char *prefix, const char *name, const char *suffix,
                        fd_against_parts *parts, bool *whole, fd_error *err) {
    const char *expert = strstr(name, "%e");
    size_t length = strcspn(name, "!"), before = parts->n;
    if (name[length] == '!') suffix = "";
    for (int e = 0;; e++) {
        char full[256];
        if (expert)
            snprintf(full, sizeof full, "%s%.*s%d%s%s", prefix, (int)(expert - name), name, e, expert + 2, suffix);
        else
            snprintf(full, sizeof full, "%s%.*s%s", prefix, (int)length, name, suffix);
        const fd_checkpoint_tensor *tensor = fd_checkpoint_find(checkpoint, full);
        if (!tensor) break;
        FD_TRY(add(parts, tensor, err));
        if (!expert) break;
    }
    *whole = parts->n > before;
    return FD_OK;
}

/* "a+b": all of it or nothing. */
static fd_code add_names(const fd_checkpoint *checkpoint, const char *prefix, const char *names, const char *suffix,
                         fd_against_parts *parts, fd_error *err) {
    char copy[160], *rest = copy;
    bool whole = true;
    snprintf(copy, sizeof copy, "%s", names);
    for (char *name; whole && (name = strsep(&rest, "+"));)
        FD_TRY(add_name(checkpoint, prefix, name, suffix, parts, &whole, err));
    if (!whole) parts->n = 0;
    return FD_OK;
}

fd_code fd_against_find(const fd_checkpoint *checkpoint, const char *tensor, fd_against_parts *out, fd_error *err) {
    int layer = -1, skipped = 0;
    char base[128], prefix[32], choices[512], *rest = choices;
    *out = (fd_against_parts){0};
    sscanf(tensor, "blk.%d.%n", &layer, &skipped);
    snprintf(base, sizeof base, "%s", tensor + skipped);
    char *dot = strrchr(base, '.'); /* ssm_a and ssm_d have no suffix */
    const char *suffix = dot ? tensor + skipped + (dot - base) : "";
    if (dot) *dot = '\0';
    choices[0] = '\0';
    for (size_t i = 0; layer < 0 && i < sizeof globals / sizeof *globals; i++)
        if (strcmp(globals[i].tensor, base) == 0) snprintf(choices, sizeof choices, "%s", globals[i].names);
    for (size_t i = 0; layer >= 0 && !*choices && i < sizeof layers / sizeof *layers; i++)
        if (strcmp(layers[i].tensor, base) == 0 || strcmp(layers[i].tensor, tensor + skipped) == 0)
            snprintf(choices, sizeof choices, "%s", layers[i].names);
    for (char *name; (name = strsep(&rest, " "));)
        for (size_t p = 0; p < (layer < 0 ? 1 : sizeof of_layer / sizeof *of_layer) && *name; p++) {
            prefix[0] = '\0';
            if (layer >= 0) snprintf(prefix, sizeof prefix, of_layer[p], layer);
            FD_TRY(add_names(checkpoint, prefix, name, suffix, out, err));
            if (out->n > 0) return FD_OK;
        }
    return FD_OK;
}
