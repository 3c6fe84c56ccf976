/* A mixture of experts in place of the FFN. */
#include "model/builder.h"

/* What the file says of the router must be what the architecture does. */
static void check_gating(fd_builder *b, const fd_experts_block *how) {
    int32_t own = how->gating == FD_GATING_SOFTMAX ? 3 : how->sigmoid ? 2 : 1;
    if (b->h->expert_gating != 0 && b->h->expert_gating != own)
        fd_builder_set_error(b, fd_fail(b->err, FD_ERR_UNSUPPORTED, "key %s.expert_gating_func: %d, expected %d",
                                        b->h->arch, b->h->expert_gating, own));
}

/* What goes into ffn_down_exps: of gate and up, which newer files hold in one tensor, or of up alone. */
static int32_t activated(fd_builder *b, int32_t layer, int32_t x, int32_t ids, const fd_experts_block *how) {
    const int32_t n = b->h->n_ff_expert;
    int32_t gate, up;
    if (!fd_is_gated(how->activation)) {
        up = fd_build_expert_matmul(b, layer, "ffn_moe_up", "ffn_up_exps", x, ids, n, how->bias);
        return fd_build_activation(b, layer, "ffn_moe_act", how->activation, up);
    }
    if (fd_build_has(b, layer, "ffn_gate_up_exps.weight")) {
        int32_t both =
            fd_build_expert_matmul(b, layer, "ffn_moe_gate_up", "ffn_gate_up_exps", x, ids, 2 * n, how->bias);
        gate = fd_build_slice(b, layer, "ffn_moe_gate", both, 0, n);
        up = fd_build_slice(b, layer, "ffn_moe_up", both, n, n);
    } else {
        gate = fd_build_expert_matmul(b, layer, "ffn_moe_gate", "ffn_gate_exps", x, ids, n, how->bias);
        up = fd_build_expert_matmul(b, layer, "ffn_moe_up", "ffn_up_exps", x, ids, n, how->bias);
    }
    return fd_build_gated(b, layer, "ffn_moe_act", how->activation, gate, up);
}

/* Factors of experts (ffn_down_exps.scale), as part of their weights: a row that holds them, of which the chosen experts'
 * are taken. */
static int32_t scaled(fd_builder *b, int32_t layer, int32_t row, int32_t ids, int32_t weights) {
    if (!fd_build_has(b, layer, "ffn_down_exps.scale")) return weights;
    int32_t zeros = fd_build_scale(b, layer, "ffn_moe_zeros", row, 0.0f);
    int32_t factors = fd_build_add_vector(b, layer, "ffn_moe_factors", "ffn_down_exps.scale", zeros);
    factors = fd_build_expert_weights(b, layer, "ffn_moe_factors_chosen", factors, ids, FD_GATING_GATHER);
    return fd_build_mul(b, layer, "ffn_moe_weights_scaled", weights, factors);
}

int32_t fd_build_routed_experts(fd_builder *b, int32_t layer, int32_t router, int32_t x, const fd_experts_block *how) {
    const fd_hparams *h = b->h;
    check_gating(b, how);
    int32_t row = fd_build_matmul(b, layer, "ffn_moe_logits", "ffn_gate_inp", router, h->n_expert, how->bias);
    if (how->gating != FD_GATING_SOFTMAX)
        row = how->sigmoid ? fd_build_activation(b, layer, "ffn_moe_probs", FD_OP_SIGMOID, row)
                           : fd_build_softmax(b, layer, "ffn_moe_probs", row);
    int32_t choice = row;
    if (fd_build_has(b, layer, "exp_probs_b.bias"))
        choice = fd_build_add_vector(b, layer, "ffn_moe_probs_biased", "exp_probs_b.bias", row);
    int32_t ids = fd_build_top_k(b, layer, choice);
    int32_t weights = fd_build_expert_weights(b, layer, "ffn_moe_weights", row, ids, how->gating);
    weights = scaled(b, layer, row, ids, weights);
    int32_t act = activated(b, layer, x, ids, how);
    int32_t down = fd_build_expert_matmul(b, layer, "ffn_moe_down", "ffn_down_exps", act, ids, h->n_embd, how->bias);
    return fd_build_expert_sum(b, layer, "ffn_moe_out", down, weights);
}

int32_t fd_build_experts(fd_builder *b, int32_t layer, int32_t x, const fd_experts_block *how) {
    return fd_build_routed_experts(b, layer, x, x, how);
}

int32_t fd_build_shared_experts(fd_builder *b, int32_t layer, int32_t x, int32_t experts, const fd_experts_block *how) {
    const fd_hparams *h = b->h;
    const bool gated = fd_is_gated(how->activation);
    int32_t gate = -1, act;
    if (gated) gate = fd_build_matmul(b, layer, "ffn_shexp_gate", "ffn_gate_shexp", x, h->n_ff_shared, FD_OPTIONAL);
    int32_t up = fd_build_matmul(b, layer, "ffn_shexp_up", "ffn_up_shexp", x, h->n_ff_shared, FD_OPTIONAL);
    act = gated ? fd_build_gated(b, layer, "ffn_shexp_act", how->activation, gate, up)
                : fd_build_activation(b, layer, "ffn_shexp_act", how->activation, up);
    int32_t out = fd_build_matmul(b, layer, "ffn_shexp", "ffn_down_shexp", act, h->n_embd, FD_OPTIONAL);
    if (how->shared_gated) { /* by a sigmoid of one logit: a sum of one weighted row */
        int32_t logit = fd_build_matmul(b, layer, "ffn_shexp_logit", "ffn_gate_inp_shexp", x, 1, FD_OPTIONAL);
        int32_t share = fd_build_activation(b, layer, "ffn_shexp_share", FD_OP_SIGMOID, logit);
        out = fd_build_expert_sum(b, layer, "ffn_shexp_gated", fd_build_heads(b, out, 1), share);
    }
    return fd_build_add(b, layer, "ffn_out", experts, out);
}

void fd_default_expert_length(fd_builder *b) {
    fd_hparams *h = &b->graph->hparams;
    if (h->n_expert > 0 && !fd_key_find(b->keys, "expert_feed_forward_length"))
        h->n_ff_expert = h->n_ff / h->n_expert_used;
}

fd_experts_block fd_experts_of_file(const fd_builder *b) {
    return (fd_experts_block){.gating = b->h->expert_norm ? FD_GATING_NORMALISED : FD_GATING_GATHER,
                              .sigmoid = b->h->expert_gating == 2,
                              .activation = FD_OP_SILU_MUL,
                              .bias = FD_OPTIONAL};
}

int32_t fd_build_mixture(fd_builder *b, int32_t layer, int32_t x, const fd_experts_block *how) {
    if (layer < b->h->n_layer_dense || b->h->n_expert == 0) return fd_build_ffn(b, layer, x, how->activation);
    int32_t out = fd_build_experts(b, layer, x, how);
    return b->h->n_ff_shared > 0 ? fd_build_shared_experts(b, layer, x, out, how) : out;
}
