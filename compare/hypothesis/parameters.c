#include "compare/hypothesis/parameters.h"

#include <stddef.h>

#define PARAMETER(name, words, op, member, type)                                                                       \
    {                                                                                                                  \
        "other_" name, words, FD_OP_##op, offsetof(fd_node, member), FD_PARAMETER_##type,                              \
            FD_PARAMETER_##type == FD_PARAMETER_I32                                                                    \
    }

const fd_parameter fd_parameters[] = {
    PARAMETER("eps", "eps", RMS_NORM, eps, F32),
    PARAMETER("eps", "eps", LAYER_NORM, eps, F32),
    PARAMETER("eps", "eps", L2_NORM, eps, F32),
    /* first: of few dimensions the others turn by so little that another base, its square, would do as well */
    PARAMETER("rope_dims", "rotated dimensions", ROPE, rope.n_rot, I32),
    PARAMETER("rope_base", "RoPE base", ROPE, rope.base, F64),
    PARAMETER("rope_factor", "divisor of RoPE's positions", ROPE, rope.factor, F64),
    PARAMETER("attn_scale", "factor of the scores", ATTN_SCORES, scale, F32),
    /* where all is turned and all steps have it, the scores' */
    PARAMETER("rope_magnitude", "factor of cos and sin", ROPE, rope.attention_factor, F64),
    PARAMETER("attn_softcap", "softcap of the scores", ATTN_SCORES, softcap, F32),
    PARAMETER("alibi_bias", "largest bias of ALiBi", ATTN_ALIBI, max_bias, F32),
    PARAMETER("window", "sliding window", ATTN_SCORES, window, I32),
    PARAMETER("scale", "factor", SCALE, scale, F32),
    PARAMETER("softcap", "softcap", SOFTCAP, softcap, F32),
    PARAMETER("expert_scale", "factor of the experts' weights", EXPERT_WEIGHTS, scale, F32),
    PARAMETER("slope", "slope of the sigmoid", SWIGLU_CLAMP, slope, F32),
    PARAMETER("limit", "limit of the clamp", SWIGLU_CLAMP, limit, F32),
    PARAMETER("cache_row", "row of the cache", KV_WRITE, row_offset, I32),
};
const int32_t fd_n_parameter = sizeof fd_parameters / sizeof *fd_parameters;

double fd_parameter_of(const fd_parameter *p, const fd_node *node) {
    const void *at = (const char *)node + p->at;
    switch (p->type) {
    case FD_PARAMETER_F32: return (double)*(const float *)at;
    case FD_PARAMETER_F64: /* 0 counts as 1 */
        return at == &node->rope.attention_factor && !(node->rope.attention_factor > 0) ? 1 : *(const double *)at;
    case FD_PARAMETER_I32: return *(const int32_t *)at;
    }
    return 0;
}

void fd_parameter_set(const fd_parameter *p, fd_node *node, double value) {
    void *at = (char *)node + p->at;
    if (at == &node->rope.factor && node->rope.scaling == FD_ROPE_SCALING_NONE)
        node->rope.scaling = FD_ROPE_SCALING_LINEAR;
    switch (p->type) {
    case FD_PARAMETER_F32: *(float *)at = (float)value; break;
    case FD_PARAMETER_F64: *(double *)at = value; break;
    case FD_PARAMETER_I32: *(int32_t *)at = (int32_t)value; break;
    }
}
