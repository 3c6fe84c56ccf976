/* FFN bugs: another activation, or another pair of gate and up. */
#include "faults/internal.h"

#include <math.h>

#include "numerics/contract.h"

static float gelu_tanh(float x) {
    float u = 0.7978845608f * (x + 0.044715f * x * x * x); /* sqrt(2/π) */
    return 0.5f * x * (1.0f + tanhf(u));
}
static float gelu_erf(float x) {
    return 0.5f * x * (1.0f + erff(x * 0.70710678118f));
}
static float relu(float x) {
    return x > 0.0f ? x : 0.0f * x; /* NaN stays NaN */
}
static float sigmoid(float x) {
    return 1.0f / (1.0f + fd_exp32(-x));
}
static float gelu_quick(float x) {
    return x * sigmoid(1.702f * x);
}
/* ggml's CPU kernels read both from a table: of a binary16 argument, in binary16, between -10 and 10
 * (ggml_vec_geglu_f32). Its polynomial is multiplied out otherwise, which some of the table's values show. */
static float gelu_tanh_table(float gate) {
    const float x = fd_fault_to_f16(gate);
    if (gate <= -10.0f || gate >= 10.0f) return gate < 0 ? 0.0f : gate;
    return fd_fault_to_f16(0.5f * x * (1.0f + tanhf(0.7978845608f * x * (1.0f + 0.044715f * x * x))));
}
static float gelu_quick_table(float x) {
    return fd_fault_to_f16(gelu_quick(fd_fault_to_f16(x)));
}
static float identity(float x) {
    return x;
}

static void activate(const fd_op_args *args, float (*function)(float), bool times_up) {
    const float *gate = args->in[0], *up = args->in[1];
    float *y = args->out;
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        y[i] = times_up ? function(gate[i]) * up[i] : function(gate[i]);
}
FD_OVERRIDE(act_gelu_tanh, activate(args, gelu_tanh, true))
FD_OVERRIDE(act_gelu_erf, activate(args, gelu_erf, true))
FD_OVERRIDE(act_relu, activate(args, relu, true))
FD_OVERRIDE(act_sigmoid, activate(args, sigmoid, true))
FD_OVERRIDE(act_gelu_quick, activate(args, gelu_quick, true))
FD_OVERRIDE(act_gelu_tanh_table, activate(args, gelu_tanh_table, true))
FD_OVERRIDE(act_gelu_quick_table, activate(args, gelu_quick_table, true))
FD_OVERRIDE(act_missing, activate(args, identity, true))
FD_OVERRIDE(up_missing, activate(args, args->node->op == FD_OP_GELU_MUL ? fd_gelu32 : fd_silu32, false))

/* What becomes of a pair in place of function(gate) · up. */
static void combine(const fd_op_args *args, float (*pair)(float gate, float up, float (*function)(float))) {
    const float *gate = args->in[0], *up = args->in[1];
    float (*function)(float) = args->node->op == FD_OP_GELU_MUL ? fd_gelu32 : fd_silu32;
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = pair(gate[i], up[i], function);
}
static float of_product(float gate, float up, float (*function)(float)) {
    return function(gate * up);
}
static float of_both(float gate, float up, float (*function)(float)) {
    return function(gate) * function(up);
}
static float sum_of_both(float gate, float up, float (*function)(float)) {
    return function(gate) + up;
}
static float by_up_plus_one(float gate, float up, float (*function)(float)) {
    return function(gate) * (up + 1.0f);
}
FD_OVERRIDE(act_on_product, combine(args, of_product))
FD_OVERRIDE(up_activated, combine(args, of_both))
FD_OVERRIDE(up_added, combine(args, sum_of_both))
FD_OVERRIDE(up_plus_one, combine(args, by_up_plus_one))

static float relu_squared(float x) {
    return x > 0.0f ? x * x : 0.0f * x;
}
static float hard_swish(float x) {
    return x * fminf(fmaxf(x + 3.0f, 0.0f), 6.0f) / 6.0f;
}
static float softplus(float x) {
    return x > 20.0f ? x : log1pf(fd_exp32(x));
}
static float mish(float x) {
    return x * tanhf(softplus(x));
}
static float elu(float x) {
    return x > 0.0f ? x : expm1f(x);
}
static float leaky_relu(float x) {
    return x > 0.0f ? x : 0.01f * x;
}
static float silu_of_silu(float x) {
    return fd_silu32(fd_silu32(x));
}
static float gelu_of_gelu(float x) {
    return fd_gelu32(fd_gelu32(x));
}
static float x_sigmoid_of_minus_x(float x) {
    return x * sigmoid(-x);
}
FD_OVERRIDE(act_tanh, activate(args, tanhf, true))
FD_OVERRIDE(act_leaky_relu, activate(args, leaky_relu, true))
FD_OVERRIDE(act_twice, activate(args, args->node->op == FD_OP_GELU_MUL ? gelu_of_gelu : silu_of_silu, true))
FD_OVERRIDE(act_of_minus, activate(args, x_sigmoid_of_minus_x, true))
FD_OVERRIDE(act_relu_squared, activate(args, relu_squared, true))
FD_OVERRIDE(act_softplus, activate(args, softplus, true))
FD_OVERRIDE(act_mish, activate(args, mish, true))
FD_OVERRIDE(act_elu, activate(args, elu, true))
FD_OVERRIDE(act_hard_swish, activate(args, hard_swish, true))
FD_OVERRIDE(act_silu, activate(args, fd_silu32, true))
FD_APPLIES(is_silu, node->op == FD_OP_SILU_MUL)
FD_APPLIES(is_gelu, node->op == FD_OP_GELU_MUL)
FD_APPLIES(is_silu_or_gelu, is_silu(graph, node) || is_gelu(graph, node))

static void silu_on_up(fd_fault_site *site) {
    int32_t *input = site->node->input, gate = input[0];
    input[0] = input[1];
    input[1] = gate;
}

/* Without a gate. */
static void activate_alone(const fd_op_args *args, float (*activation)(float)) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = activation(((const float *)args->in[0])[i]);
}
static float of_relu(float x) {
    return x < 0 ? 0 : x;
}
static float of_square(float x) {
    return x * x;
}
FD_OVERRIDE(alone_erf, activate_alone(args, gelu_erf))
FD_OVERRIDE(alone_relu, activate_alone(args, of_relu))
FD_OVERRIDE(alone_square, activate_alone(args, of_square))
FD_OVERRIDE(alone_silu, activate_alone(args, fd_silu32))
FD_OVERRIDE(alone_gelu, activate_alone(args, gelu_tanh))
FD_OVERRIDE(alone_tanh, activate_alone(args, tanhf))
FD_OVERRIDE(alone_gelu_quick, activate_alone(args, gelu_quick))
FD_OVERRIDE(alone_sigmoid, activate_alone(args, sigmoid))
FD_APPLIES(is_alone, (node->op == FD_OP_GELU || node->op == FD_OP_RELU_SQUARED) && node->layer >= 0)
FD_APPLIES(is_gelu_alone, node->op == FD_OP_GELU)
FD_APPLIES(is_relu_squared, node->op == FD_OP_RELU_SQUARED)

#define FFN(name, summary) .info = {name, "ffn", summary, "ffn_act ffn_moe_act", false}, .op = FD_OP_COUNT

static const fd_fault rows[] = {
    {FFN("silu_on_up", "the activation is applied to up, not to gate"), .applies = is_silu_or_gelu, .edit = silu_on_up},
    {FFN("gelu_tanh", "GELU (tanh approximation) in place of SiLU"), .applies = is_silu, .override = act_gelu_tanh,
     .info.form_of = "GELU in place of the activation"},
    {FFN("gelu_erf", "GELU (erf) in place of SiLU, or of GELU's tanh approximation"), .applies = is_silu_or_gelu,
     .override = act_gelu_erf, .info.form_of = "GELU in place of the activation"},
    {FFN("silu_for_gelu", "SiLU in place of GELU"), .applies = is_gelu, .override = act_silu},
    {FFN("relu", "ReLU in place of the activation"), .applies = is_silu_or_gelu, .override = act_relu},
    {FFN("sigmoid", "the sigmoid in place of the activation"), .applies = is_silu_or_gelu, .override = act_sigmoid},
    {FFN("gelu_quick", "x / (1 + e^(-1.702 x)), GELU's quick form, in place of the activation"),
     .applies = is_silu_or_gelu, .override = act_gelu_quick, .info.form_of = "GELU in place of the activation"},
    {FFN("gelu_tanh_table", "GELU (tanh approximation) from a table of binary16, as ggml has it, in place of SiLU"),
     .applies = is_silu, .override = act_gelu_tanh_table, .info.form_of = "GELU in place of the activation"},
    {FFN("gelu_quick_table", "GELU's quick form from a table of binary16, as ggml has it, in place of the activation"),
     .applies = is_silu_or_gelu, .override = act_gelu_quick_table, .info.form_of = "GELU in place of the activation"},
    {FFN("activation_missing", "gate · up without an activation"), .applies = is_silu_or_gelu, .override = act_missing},
    {FFN("relu_squared", "ReLU's square in place of the activation"), .applies = is_silu_or_gelu,
     .override = act_relu_squared},
    {FFN("hard_swish", "x·min(max(x + 3, 0), 6) / 6, the piecewise swish, in place of the activation"),
     .applies = is_silu_or_gelu, .override = act_hard_swish},
    {FFN("mish", "Mish, x·tanh(ln(1 + e^x)), in place of the activation"), .applies = is_silu_or_gelu,
     .override = act_mish},
    {FFN("softplus", "softplus, ln(1 + e^x), in place of the activation"), .applies = is_silu_or_gelu,
     .override = act_softplus},
    {FFN("elu", "ELU, e^x - 1 below 0, in place of the activation"), .applies = is_silu_or_gelu, .override = act_elu},
    {FFN("tanh", "tanh in place of the activation"), .applies = is_silu_or_gelu, .override = act_tanh},
    {FFN("leaky_relu", "leaky ReLU, 0.01 x below 0, in place of the activation"), .applies = is_silu_or_gelu,
     .override = act_leaky_relu},
    {FFN("activation_twice", "the gate is activated twice"), .applies = is_silu_or_gelu, .override = act_twice},
    {FFN("sigmoid_of_minus", "x / (1 + e^x) in place of SiLU, x / (1 + e^-x)"), .applies = is_silu,
     .override = act_of_minus},
    {FFN("up_plus_one", "the activated gate is multiplied by up + 1"), .applies = is_silu_or_gelu,
     .override = up_plus_one},
    {FFN("up_missing", "the activated gate is not multiplied by up"), .applies = is_silu_or_gelu,
     .override = up_missing},
    {FFN("act_on_product", "the activation is applied to gate · up, not to gate"), .applies = is_silu_or_gelu,
     .override = act_on_product},
    {FFN("up_activated", "up is activated as well as gate"), .applies = is_silu_or_gelu, .override = up_activated},
    {FFN("up_added", "up is added to the activated gate, not multiplied with it"), .applies = is_silu_or_gelu,
     .info.roundings = 2, .override = up_added},
    {FFN("up_gelu_erf", "without a gate: GELU's erf form in place of its tanh approximation"), .applies = is_gelu_alone,
     .override = alone_erf},
    {FFN("up_relu", "without a gate: ReLU in place of the activation, its square among them"), .applies = is_alone,
     .override = alone_relu},
    {FFN("up_silu", "without a gate: SiLU in place of the activation"), .applies = is_alone, .override = alone_silu},
    {FFN("up_gelu", "without a gate: GELU (tanh approximation) in place of ReLU's square"), .applies = is_relu_squared,
     .override = alone_gelu},
    {FFN("up_gelu_quick", "without a gate: GELU's quick form, x / (1 + e^(-1.702 x)), in place of the activation"),
     .applies = is_alone, .override = alone_gelu_quick},
    {FFN("up_sigmoid", "without a gate: the sigmoid in place of the activation"), .applies = is_alone,
     .override = alone_sigmoid},
    {FFN("up_tanh", "without a gate: tanh in place of the activation"), .applies = is_alone, .override = alone_tanh},
    {FFN("up_square", "without a gate: negative elements are squared too"), .applies = is_relu_squared,
     .override = alone_square},
    {FFN("up_activation_missing", "without a gate: the activation is left out"), .applies = is_alone,
     .override = fd_fault_copy},
};
const fd_fault_family fd_activation_faults = FD_FAULT_FAMILY(rows);
