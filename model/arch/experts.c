/* A mixture of experts in place of the FFN. */
#include "model/builder.h"

int32_t fd_build_experts(fd_builder *b, int32_t layer, int32_t x, fd_gating gating, fd_op activation, fd_need bias) {
    const fd_hparams *h = b->h;
    int32_t row = fd_build_matmul(b, layer, "ffn_moe_logits", "ffn_gate_inp", x, h->n_expert, bias);
    if (gating != FD_GATING_SOFTMAX) row = fd_build_softmax(b, layer, "ffn_moe_probs", row);
    int32_t ids = fd_build_top_k(b, layer, "ffn_moe_topk", row);
    int32_t weights = fd_build_expert_weights(b, layer, "ffn_moe_weights", row, ids, gating);
    int32_t gate = fd_build_expert_matmul(b, layer, "ffn_moe_gate", "ffn_gate_exps", x, ids, h->n_ff_expert, bias);
    int32_t up = fd_build_expert_matmul(b, layer, "ffn_moe_up", "ffn_up_exps", x, ids, h->n_ff_expert, bias);
    int32_t act = fd_build_gated(b, layer, "ffn_moe_act", activation, gate, up);
    int32_t down = fd_build_expert_matmul(b, layer, "ffn_moe_down", "ffn_down_exps", act, ids, h->n_embd, bias);
    return fd_build_expert_sum(b, layer, "ffn_moe_out", down, weights);
}
