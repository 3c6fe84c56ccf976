/* State-space layers, mamba and mamba2: the convolution, the step dt, the scan and the gate. Computed in binary32, written apart
 * from reference_cpu. */
#include <math.h>
#include <stdlib.h>

#include "faults/internal.h"
#include "numerics/contract.h"

/* ---- the convolution ---- */

FD_EDIT(conv_bias_missing, node->weight[1] = -1)

/* Which tap the element j positions before the row's own is multiplied by; -1: none. */
typedef int64_t (*tap_fn)(int64_t j, int64_t n_tap);

static void conv_with(const fd_op_args *args, tap_fn tap_of) {
    const int64_t n = fd_node_width(args->node), n_tap = args->weight[0]->n_col;
    const float *x = args->in[0];
    float *bias = args->weight[1] ? fd_fault_row(args->weight[1], 0) : NULL;
    for (int64_t c = 0; c < n; c++) {
        float *taps = fd_fault_row(args->weight[0], c);
        for (int32_t row = 0; row < args->n_pos; row++) {
            const int64_t own = args->pos0 + row;
            float acc = 0;
            for (int64_t j = n_tap - 1; j >= 0; j--) {
                const int64_t tap = tap_of(j, n_tap);
                if (own >= j && tap >= 0) acc = fmaf(taps ? taps[tap] : NAN, x[(own - j) * n + c], acc);
            }
            ((float *)args->out)[row * n + c] = bias ? acc + bias[c] : acc;
        }
        free(taps);
    }
    free(bias);
}
static int64_t tap_reversed(int64_t j, int64_t n_tap) {
    (void)n_tap;
    return j;
}
static int64_t tap_not_oldest(int64_t j, int64_t n_tap) {
    return j == n_tap - 1 ? -1 : n_tap - 1 - j;
}
FD_OVERRIDE(conv_reversed, conv_with(args, tap_reversed))
static int64_t tap_right(int64_t j, int64_t n_tap) {
    return n_tap - 1 - j;
}
FD_OVERRIDE(conv_oldest_missing, conv_with(args, tap_not_oldest))
/* As mamba's convolution has it; lfm2's has none. */
static void conv_through_silu(const fd_op_args *args) {
    conv_with(args, tap_right);
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = fd_silu32(((const float *)args->out)[i]);
}

/* x has it, B and C, which come through the same convolution, do not. */
static void silu_on_x_alone(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    const int64_t n_x = fd_node_width(&args->graph->nodes[fd_fault_sibling(args->graph, args->node, "ssm_x_alone")]);
    for (int64_t i = 0; i < args->n_pos * n; i++) {
        const float x = ((const float *)args->in[0])[i];
        ((float *)args->out)[i] = i % n < n_x ? fd_silu32(x) : x;
    }
}
FD_APPLIES(has_x_alone, fd_fault_sibling(graph, node, "ssm_x_alone") >= 0)

/* ---- parts of one matrix, or of one row ---- */

static void exchanged(fd_fault_site *site, const char *a, const char *b) {
    const int32_t other = fd_fault_sibling(site->graph, site->node, fd_fault_is_one_of(site->node, a) ? b : a);
    if (other < 0 || fd_node_width(&site->graph->nodes[other]) != fd_node_width(site->node)) return;
    site->node->weight[0] = site->graph->nodes[other].weight[0];
    site->node->first = site->graph->nodes[other].first;
}
FD_EDIT(b_c_exchanged, exchanged(site, "ssm_b", "ssm_c"))
FD_EDIT(x_z_exchanged, exchanged(site, "ssm_in", "ssm_z"))
FD_EDIT(shortconv_b_c_exchanged, exchanged(site, "conv_b", "conv_c"))
FD_EDIT(shortconv_c_x_exchanged, exchanged(site, "conv_c", "conv_x"))

/* ---- the step ---- */

static void step_by(const fd_op_args *args, float (*of)(float x)) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = of(((const float *)args->in[0])[i]);
}
static float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}
static float step_exp(float x) {
    return fd_exp32(x);
}
static float step_relu(float x) {
    return x < 0 ? 0 : x;
}
/* The range that a checkpoint's steps were drawn from, which is no limit. */
static float step_clamped(float x) {
    return fminf(fmaxf(softplus(x), 0.001f), 0.1f);
}
FD_OVERRIDE(dt_exp, step_by(args, step_exp))
FD_OVERRIDE(dt_relu, step_by(args, step_relu))
FD_OVERRIDE(dt_clamped, step_by(args, step_clamped))

/* The bias stands in the node before: of its product, or by itself. */
static const fd_weight *step_bias(const fd_graph *graph, const fd_node *node) {
    const fd_node *before = &graph->nodes[node->input[0]];
    return fd_fault_weight(graph, before, before->op == FD_OP_MATMUL ? 1 : 0);
}
static void bias_after_softplus(const fd_op_args *args) {
    const int64_t n = fd_node_width(args->node);
    float *bias = fd_fault_row(step_bias(args->graph, args->node), 0);
    for (int64_t i = 0; i < args->n_pos * n; i++) {
        const float b = bias ? bias[i % n] : NAN;
        ((float *)args->out)[i] = softplus(((const float *)args->in[0])[i] - b) + b;
    }
    free(bias);
}
FD_APPLIES(has_step_bias, step_bias(graph, node) != NULL)

/* ---- the scan ---- */

/* What of the scan is another; all at zero: as it should be. */
typedef struct scan_rule {
    bool keeps;      /* the state does not decay */
    bool linear;     /* it decays by 1 + A dt, the first terms of e^(A dt) */
    bool late;       /* by the dt of the position before */
    bool unscaled;   /* it takes in x B, not dt x B */
    bool early;      /* it is read before the position's own update */
    bool half_early; /* after its decay, before dt x B is added */
    bool held;       /* it takes in (e^(A dt) - 1) / A x B: exact zero-order hold, of which dt is the first term */
    bool no_skip;    /* D x is not added */
    bool modulo;     /* head h reads group h % n_group, not h / (heads a group) */
    float (*decay)(float a);    /* what A becomes; NULL: A */
    fd_fault_round state_round; /* after every position; NULL: not */
} scan_rule;

static void scan_with(const fd_op_args *args, scan_rule how) {
    const fd_node *c_node = fd_fault_input(args, 1);
    const int64_t n_head = args->node->shape[0], dim = args->node->shape[1], n_channel = n_head * dim;
    const int64_t n_group = c_node->shape[0], n = c_node->shape[1], width = n_head + n_channel + n_group * n;
    for (int64_t channel = 0; channel < n_channel; channel++) {
        const int64_t head = channel / dim, group = how.modulo ? head % n_group : head / (n_head / n_group);
        const fd_weight *d = args->weight[1];
        float *a = fd_fault_row(args->weight[0], head), *skip = fd_fault_row(d, d->n_row == 1 ? 0 : head);
        float h[FD_MAX_STATE] = {0};
        for (int64_t t = 0; t < args->pos0 + args->n_pos; t++) {
            const float *row = (const float *)args->in[0] + t * width;
            const float dt = row[head], x = row[n_head + channel], *b = row + n_head + n_channel + group * n;
            const float by = how.late && t > 0 ? row[head - width] : dt, in = how.unscaled ? x : x * dt;
            const float *c = (const float *)args->in[1] + ((t - args->pos0) * n_group + group) * n;
            float y = 0;
            for (int64_t s = 0; s < n; s++) {
                const float own = !a ? NAN : args->weight[0]->n_col > 1 ? a[s] : a[0];
                const float rate = (how.decay ? how.decay(own) : own) * by;
                const float had = h[s];
                const float decay = how.keeps ? 1 : how.linear ? 1 + rate : fd_exp32(rate);
                h[s] = fmaf(had, decay, (how.held ? x * expm1f(rate) / own : in) * b[s]);
                if (how.state_round) h[s] = how.state_round(h[s]);
                if (t >= args->pos0) y = fmaf(c[s], how.early ? had : how.half_early ? had * decay : h[s], y);
            }
            if (t < args->pos0) continue;
            const float d_own = !skip ? NAN : skip[d->n_row == 1 ? head : 0];
            ((float *)args->out)[(t - args->pos0) * n_channel + channel] = how.no_skip ? y : fmaf(d_own, x, y);
        }
        free(a);
        free(skip);
    }
}
static float minus_exp(float a) {
    return -fd_exp32(a);
}
static float logarithm(float a) {
    return logf(-a);
}
FD_OVERRIDE(scan_a_twice, scan_with(args, (scan_rule){.decay = minus_exp}))
FD_OVERRIDE(scan_a_raw, scan_with(args, (scan_rule){.decay = logarithm}))
FD_OVERRIDE(scan_keeps, scan_with(args, (scan_rule){.keeps = true}))
FD_OVERRIDE(scan_linear, scan_with(args, (scan_rule){.linear = true}))
FD_OVERRIDE(scan_late, scan_with(args, (scan_rule){.late = true}))
FD_OVERRIDE(scan_unscaled, scan_with(args, (scan_rule){.unscaled = true}))
FD_OVERRIDE(scan_early, scan_with(args, (scan_rule){.early = true}))
FD_OVERRIDE(scan_half_early, scan_with(args, (scan_rule){.half_early = true}))
FD_OVERRIDE(scan_held, scan_with(args, (scan_rule){.held = true}))
FD_OVERRIDE(scan_no_skip, scan_with(args, (scan_rule){.no_skip = true}))
FD_OVERRIDE(scan_modulo, scan_with(args, (scan_rule){.modulo = true}))
FD_OVERRIDE(scan_f16, scan_with(args, (scan_rule){.state_round = fd_fault_to_f16}))
FD_OVERRIDE(scan_bf16, scan_with(args, (scan_rule){.state_round = fd_fault_to_bf16}))
FD_APPLIES(several_groups,
           graph->nodes[node->input[1]].shape[0] > 1 && graph->nodes[node->input[1]].shape[0] < node->shape[0])

/* ---- the gate: its first input z, its second what the scan gave ---- */

static void gate_missing(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = ((const float *)args->in[1])[i];
}

/* The projection after the norm, of rows that go through the gate there: its second input is z. */
static void out_of_gated(const fd_op_args *args) {
    const fd_weight *w = args->weight[0];
    const int64_t n_in = w->n_col, n_out = w->n_row;
    float *gated = malloc(sizeof *gated * (size_t)(args->n_pos * n_in)), *row = NULL;
    for (int64_t i = 0; i < args->n_pos * n_in && gated; i++)
        gated[i] = ((const float *)args->in[0])[i] * fd_silu32(((const float *)args->in[1])[i]);
    for (int64_t o = 0; o < n_out; o++, free(row)) {
        row = fd_fault_row(w, o);
        for (int32_t r = 0; r < args->n_pos; r++)
            ((float *)args->out)[r * n_out + o] = row && gated ? fd_fault_dot(row, gated + r * n_in, n_in) : NAN;
    }
    free(gated);
}
static void gate_after_norm(fd_fault_site *site) {
    fd_node *node = site->node;
    const int32_t gate = fd_fault_sibling(site->graph, node, "ssm_gated");
    if (gate < 0 || fd_fault_sibling(site->graph, node, "ssm_norm") < 0 || node->weight[1] >= 0) return;
    node->override = node->op == FD_OP_SILU_MUL ? gate_missing : out_of_gated;
    if (node->op == FD_OP_MATMUL) node->input[1] = site->graph->nodes[gate].input[0];
}

/* lfm2's gate goes through nothing. */
static void gate_squashed(const fd_op_args *args) {
    for (int64_t i = 0; i < args->n_pos * fd_node_width(args->node); i++)
        ((float *)args->out)[i] = ((const float *)args->in[1])[i] / (1.0f + fd_exp32(-((const float *)args->in[0])[i]));
}

#define CONVOLUTIONS "ssm_conv conv_out delta_conv"
#define SSM(name, located, op_, summary)                                                                               \
    .info = {name, "attention", summary, located, false}, .op = op_, .nodes = located
#define ROUNDED(name, summary, u) .info = {name, "attention", summary, "ssm_scan", false, u}, .op = FD_OP_SSM_SCAN

static const fd_fault rows[] = {
    {SSM("ssm_conv_bias_missing", "ssm_conv", FD_OP_CONV, "the convolution's bias is not added"),
     .edit = conv_bias_missing},
    {SSM("ssm_conv_reversed", CONVOLUTIONS, FD_OP_CONV, "the convolution takes its taps in the other order"),
     .override = conv_reversed},
    {SSM("ssm_conv_oldest_missing", CONVOLUTIONS, FD_OP_CONV, "the convolution leaves out its oldest tap"),
     .override = conv_oldest_missing},
    {SSM("shortconv_silu_added", "conv_out", FD_OP_CONV,
         "the convolution's output goes through SiLU, which lfm2 does not do"),
     .override = conv_through_silu, .info.roundings = 4},
    {SSM("shortconv_gate_squashed", "conv_gated", FD_OP_MUL, "the gate after the convolution goes through a sigmoid"),
     .override = gate_squashed, .info.roundings = 4},
    {SSM("shortconv_b_c_exchanged", "conv_b conv_c", FD_OP_MATMUL,
         "the gates before and after the convolution are exchanged"),
     .edit = shortconv_b_c_exchanged},
    {SSM("shortconv_c_x_exchanged", "conv_c conv_x", FD_OP_MATMUL,
         "the gate after the convolution and what it convolves are exchanged"),
     .edit = shortconv_c_x_exchanged},
    {SSM("ssm_silu_missing", "ssm_x", FD_OP_SILU, "nothing comes between the convolution and the scan"),
     .override = fd_fault_copy},
    {SSM("ssm_silu_on_x_alone", "ssm_x", FD_OP_SILU, "the activation after the convolution leaves out B and C"),
     .applies = has_x_alone, .override = silu_on_x_alone},
    {SSM("ssm_b_c_exchanged", "ssm_b ssm_c", FD_OP_COUNT, "B and C are exchanged"), .edit = b_c_exchanged},
    {SSM("ssm_x_z_exchanged", "ssm_in ssm_z", FD_OP_MATMUL, "x and its gate z are exchanged"), .edit = x_z_exchanged},
    {SSM("ssm_dt_bias_missing", "ssm_dt_biased", FD_OP_ADD_VECTOR, "the bias of the step dt is not added"),
     .override = fd_fault_copy},
    {SSM("ssm_softplus_missing", "ssm_dt_softplus", FD_OP_SOFTPLUS, "the step dt is taken as it is"),
     .override = fd_fault_copy},
    {SSM("ssm_dt_exp", "ssm_dt_softplus", FD_OP_SOFTPLUS, "the step dt goes through e^x, not through a softplus"),
     .override = dt_exp},
    {SSM("ssm_dt_relu", "ssm_dt_softplus", FD_OP_SOFTPLUS, "the step dt goes through a ReLU, not through a softplus"),
     .override = dt_relu},
    {SSM("ssm_dt_clamped", "ssm_dt_softplus", FD_OP_SOFTPLUS, "the step dt is kept between 0.001 and 0.1"),
     .override = dt_clamped},
    {SSM("ssm_dt_bias_after", "ssm_dt_softplus", FD_OP_SOFTPLUS, "the bias of the step dt is added after the softplus"),
     .applies = has_step_bias, .override = bias_after_softplus},
    {SSM("ssm_a_exp_twice", "ssm_scan", FD_OP_SSM_SCAN, "A is taken for its logarithm: -e^A decays the state"),
     .override = scan_a_twice},
    {SSM("ssm_a_logarithm", "ssm_scan", FD_OP_SSM_SCAN, "A is ln(-A), as checkpoints store it"),
     .override = scan_a_raw},
    {SSM("ssm_no_decay", "ssm_scan", FD_OP_SSM_SCAN, "the scan's state does not decay"), .override = scan_keeps},
    {SSM("ssm_decay_linear", "ssm_scan", FD_OP_SSM_SCAN, "the scan's state decays by 1 + A dt, not by e^(A dt)"),
     .override = scan_linear},
    {SSM("ssm_decay_late", "ssm_scan", FD_OP_SSM_SCAN, "the scan's state decays by the dt of the position before"),
     .override = scan_late},
    {SSM("ssm_dt_missing", "ssm_scan", FD_OP_SSM_SCAN, "the scan's state takes in x B, not dt x B"),
     .override = scan_unscaled},
    {SSM("ssm_read_early", "ssm_scan", FD_OP_SSM_SCAN, "the scan's state is read before a position updates it"),
     .override = scan_early},
    {SSM("ssm_read_before_input", "ssm_scan", FD_OP_SSM_SCAN,
         "the scan's state is read after its decay, before dt x B is added"),
     .override = scan_half_early},
    {SSM("ssm_hold_exact", "ssm_scan", FD_OP_SSM_SCAN, "the scan's state takes in (e^(A dt) - 1) / A x B, not dt x B"),
     .override = scan_held},
    {SSM("ssm_d_missing", "ssm_scan", FD_OP_SSM_SCAN, "D x is not added to what the scan gives"),
     .override = scan_no_skip},
    {SSM("ssm_groups_modulo", "ssm_scan", FD_OP_SSM_SCAN,
         "head h of the scan reads B and C of group h modulo the number of groups, not of h / group size"),
     .applies = several_groups, .override = scan_modulo},
    {ROUNDED("ssm_state_f16", "the scan's state is kept in binary16", 0x1p-11), .override = scan_f16},
    {ROUNDED("ssm_state_bf16", "the scan's state is kept in bfloat16", 0x1p-8), .override = scan_bf16},
    {SSM("ssm_gate_missing", "ssm_gated", FD_OP_SILU_MUL, "what the scan gives is not multiplied by its gate"),
     .override = gate_missing},
    {.info = {"ssm_gate_after_norm", "attention",
              "what the scan gives goes through its gate after the norm, not before it", "ssm_gated", false},
     .op = FD_OP_COUNT,
     .nodes = "ssm_gated ssm_out",
     .edit = gate_after_norm},
};
const fd_fault_family fd_ssm_faults = FD_FAULT_FAMILY(rows);
