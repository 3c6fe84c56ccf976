/* What all bounds share: the candidate's rounding of inputs and outputs, memory, the table of ops. */
#include <omp.h>
#include <stdlib.h>

#include "base/dtype.h"
#include "compare/bounds/dot_inputs.h"
#include "compare/bounds/internal.h"
#include "model/weight_rows.h"

static void (*const by_op[FD_OP_COUNT])(const fd_bound_work *) = {
#define FD_OP(ENUM, name, n_input, summary) [FD_OP_##ENUM] = fd_bound_##name,
#include "model/ops.def"
#undef FD_OP
};

static double kv_tiny(const fd_numerics_class *c) {
    return c->u_kv == 0x1p-11 ? 0x1p-24 : c->u_kv > 0 ? 0x1p-126 : 0;
}

static int digits_of(double u) {
    return u > 0 ? (int)lrint(-log2(u)) : 53;
}

double fd_bound_weight_roundoff(const fd_numerics_class *c, const fd_weight *weight) {
    const uint32_t dtype = weight->dtype;
    /* ggml-cuda makes d·scale and dmin·min of a block of 32 in binary16, and the sum of x that the min is multiplied
     * with: as for activations, errors that 32 elements share. Of w = d·scale·q − dmin·min with q even over 0 … 15
     * the two terms have 2.5 times the root mean square of w. */
    if (c->u_acc_f16 > 0 && fd_dtype_get(dtype)->block_elements == 256) return 2.5 * c->u_acc_f16 * sqrt(32);
    /* beside results of 16 bits weights may have been rounded or not; replay has rounded them */
    if (c->u_shown > 0 && c->u_factor > 0 && c->u_out > 0x1p-24) return c->u_shown;
    bool blocks = c->q8_activations || (c->replays_inputs && !(c->u_factor > 0));
    if (blocks && fd_bound_has_sums(dtype)) return FD_BOUND_U_OF_SUMS;
    if (c->q8_activations && (dtype != FD_F32 || weight->requantised))
        return 0; /* they meet activations in a type that holds them */
    /* binary16 fits TF32 and binary16, bfloat16 fits TF32 and bfloat16; anything else is dequantised and rounded. */
    bool f16_fits = c->u_in <= 2 * 0x1p-11, bf16_fits = c->tiny_in < 0x1p-24;
    return (dtype == FD_F16 && f16_fits) || (dtype == FD_BF16 && bf16_fits) ? 0 : c->u_in;
}

/* int8 blocks: x ≈ d·q with d = absmax/127, so x is off by at most d/2, evenly spread (variance d²/12). Beside
 * 32-element formats d itself is stored in binary16: off by 2⁻¹¹ for the whole block, and a sum that 32 elements
 * share is at most √32 of independent ones (Cauchy–Schwarz). */
static void add_block_error(const double *x, int64_t n, int64_t block, double *e) {
    for (int64_t at = 0; at < n; at += block) {
        int64_t end = at + block < n ? at + block : n;
        double most = 0;
        for (int64_t k = at; k < end; k++) most = fabs(x[k]) > most ? fabs(x[k]) : most;
        double step = most / 127, u_scale = block == 32 ? 0x1p-11 * sqrt(32) : 0;
        for (int64_t k = at; k < end; k++)
            e[k] = sqrt(e[k] * e[k] + step * step / 12 + u_scale * u_scale * x[k] * x[k]);
    }
}

static void add_rounding(const fd_numerics_class *c, const double *x, int64_t n, double u, double tiny, double *e) {
    if (u == 0) return;
    int digits = digits_of(u);
#pragma omp parallel for if (n > FD_BOUND_MANY / 16)
    for (int64_t k = 0; k < n; k++) {
        double own = fd_bound_rounding(c, fd_rounding_error(x[k], digits, tiny));
        e[k] = sqrt(e[k] * e[k] + own * own);
    }
}

/* Before a matmul with quantised weights llama.cpp makes int8 blocks; with binary16 or bfloat16 weights it rounds the
 * activations to the weights' type, with binary32 ones as the class says. */
static void add_q8_error(const fd_numerics_class *c, const fd_weight *w, const double *x, int64_t n, double *e) {
    const fd_dtype_info *type = fd_dtype_get(w->dtype);
    if (!fd_dot_is_of_integers(w))
        add_rounding(c, x, n, w->dtype == FD_F32 ? c->u_in : fd_dtype_roundoff(w->dtype), fd_dtype_tiny(w->dtype), e);
    else
#pragma omp parallel for if (n > FD_BOUND_MANY / 16)
        for (int64_t at = 0; at < n; at += w->n_col) /* Q8_K beside blocks of 256, else blocks of 32 */
            add_block_error(x + at, w->n_col, type->block_elements == 256 ? 256 : 32, e + at);
}

/* Blocks of what bfloat16 leaves of x. Values of so few bits stand on the middle between two steps more often than others. */
static void add_bf16_flips(const fd_bound_work *work, const double *x, int64_t n, double *e) {
    double *rounded = malloc(sizeof *rounded * (size_t)(n > 0 ? n : 1));
    if (!rounded) {
        *work->code = fd_fail(work->err, FD_ERR_MEMORY, "%s: bounds: out of memory", work->node->name);
        return;
    }
    for (int64_t k = 0; k < n; k++) {
        rounded[k] = (double)fd_bf16_to_f32(fd_f32_to_bf16((float)x[k]));
        const double low = (double)fd_bf16_to_f32(fd_f32_to_bf16((float)(x[k] - e[k]))),
                     high = (double)fd_bf16_to_f32(fd_f32_to_bf16((float)(x[k] + e[k])));
        e[k] = fmax(high - rounded[k], rounded[k] - low);
    }
    fd_bound_flips(rounded, e, n, fd_dot_block(FD_DOT_INT8_OF_BF16, n), e);
    free(rounded);
}

/* Scores' scale, where it is no power of two, may be in K before that is rounded to the tensors' type (OpenVINO moves it there), so that
 * values of that type are rounded once more. Of scores that were not recorded what reads them shows the engine's. */
static bool may_hold_scale(const fd_bound_work *work) {
    int exponent;
    const bool scores = work->node->op == FD_OP_ATTN_SCORES;
    return scores && work->args->stored != FD_F64 && work->c->u_shown > 0 &&
           fabs(frexp((double)work->node->scale, &exponent)) != 0.5;
}

static void add_scaled_rounding(const fd_numerics_class *c, const double *x, int64_t n, double *e) {
    for (int64_t k = 0; k < n; k++) e[k] = fmax(e[k], fd_bound_rounding(c, c->u_attn * fabs(x[k])));
}

static void add_input_error(const fd_bound_work *work, int i, int64_t n, double *e) {
    const fd_numerics_class *c = work->c;
    const double *x = work->in[i];
    if (c->typical && c->u_out > 0x1p-24) return; /* they were rounded to that type as results */
    const fd_weight *weight = fd_dot_weight(work->op);
    const fd_op op = work->node->op;
    const bool cached = i == 0 && (op == FD_OP_ATTN_SCORES || op == FD_OP_ATTN_MIX);
    fd_dot_type dot = cached ? fd_dot_type_beside_cache(c, work->node, work->args->kv_type)
                             : fd_dot_type_of(c, work->node, weight, i);
    if (dot == FD_DOT_INT8_OF_BF16) {
        add_bf16_flips(work, x, n, e);
        return;
    }
    if (fd_dot_is_blocks(dot)) {
        fd_bound_flips(x, e, n, fd_dot_block(dot, weight ? weight->n_col : 32), e);
        for (int64_t k = 0; !weight && fd_bound_has_sums(work->args->kv_type) && k < n; k++)
            e[k] = hypot(e[k], FD_BOUND_U_OF_SUMS * x[k]);
        return;
    }
    switch (work->node->op) {
    case FD_OP_EXPERT_MATMUL:
        if (i == 1) return; /* ids */
        /* fall through */
    case FD_OP_MATMUL:
    case FD_OP_HEAD_MATMUL:
        if (c->q8_activations)
            add_q8_error(c, fd_dot_weight(work->op), x, n, e);
        else
            add_rounding(c, x, n, c->u_in, c->tiny_in, e);
        return;
    case FD_OP_ATTN_SCORES:
    case FD_OP_ATTN_MIX:
        if (fd_kv_is_quantised(work->args->kv_type) && c->q8_activations)
            return; /* dequantised rows, weights in binary32 */
        add_rounding(c, x, n, c->u_attn, c->tiny_in, e);
        if (i == 1 && may_hold_scale(work)) add_scaled_rounding(c, x, n, e);
        /* an engine may round a cached row where it reads it instead of where it writes it */
        if (i == 1 && c->u_kv > c->u_attn && !fd_kv_is_quantised(work->args->kv_type))
            add_rounding(c, x, n, c->u_kv, kv_tiny(c), e);
        return;
    case FD_OP_KV_WRITE: return; /* its rounding is the output's */
    case FD_OP_EXPERT_WEIGHTS:
        if (i == 1) return; /* ids */
        /* fall through */
    default: /* an engine of 16-bit tensors reads them as such */
        if (c->u_out > 0x1p-24) add_rounding(c, x, n, c->u_out, c->tiny_out, e);
    }
}

void fd_bound_flips(const double *x, const double *e, int64_t n, int64_t block, double *to) {
    for (int64_t at = 0; at + block <= n; at += block) {
        double most = 0;
        for (int64_t i = at; i < at + block; i++) most = fmax(most, fabs(x[i]));
        double step = most / 127;
        for (int64_t i = at; i < at + block && step > 0; i++) {
            double steps = fabs(x[i]) / step, margin = e[i] / step + 4 * 0x1p-24 * (steps + 8);
            if (fabs(steps - floor(steps) - 0.5) <= margin) to[i] += 2 * step;
        }
    }
}

static int64_t input_elements(const fd_op_args *op, int i) {
    const fd_node *input = &op->graph->nodes[op->node->input[i]];
    int64_t rows = input->op == FD_OP_KV_WRITE ? op->n_kv : op->n_pos;
    return rows * fd_node_row_stride(input, op->n_kv);
}

static fd_code prepare(fd_bound_work *work, double *e[FD_MAX_INPUTS], fd_error *err) {
    const fd_op_args *op = work->op;
    int64_t longest = work->stride;
    size_t n_thread = (size_t)omp_get_max_threads();
    for (int i = 0; i < FD_MAX_WEIGHTS; i++)
        if (op->weight[i] && op->weight[i]->n_col > longest) longest = op->weight[i]->n_col;
    work->longest = longest;
    work->row = malloc(sizeof *work->row * n_thread * (size_t)longest);
    fd_op kind = work->node->op;
    bool weighs = fd_dot_is_product(kind) || kind == FD_OP_EXPERT_WEIGHTS;
    if (weighs) work->scratch = malloc(sizeof *work->scratch * (size_t)(op->n_pos * (2 * longest + 1)));
    if (!work->row || (weighs && !work->scratch))
        return fd_fail(err, FD_ERR_MEMORY, "%s: bounds: out of memory", work->node->name);
    for (int i = 0; i < FD_MAX_INPUTS; i++) {
        if (work->node->input[i] < 0) continue;
        int64_t n = input_elements(op, i);
        e[i] = calloc((size_t)n, sizeof *e[i]);
        if (!e[i]) return fd_fail(err, FD_ERR_MEMORY, "%s: bounds: out of memory", work->node->name);
        for (int64_t k = 0; work->args->in_error[i] && k < n; k++) e[i][k] = work->args->in_error[i][k];
        work->in[i] = op->in[i];
        work->e[i] = e[i];
        add_input_error(work, i, n, e[i]);
    }
    return FD_OK;
}

/* What is unknown (bounds_experts.c) stays so: its products may overflow, or meet a 0, and must not become NaN.
 *
 * One ulp of the larger of the two: the candidate's last rounding is half of one, a second (through a wider
 * register, or of what the trace stores) the other half. A cache row is a copy: it is rounded only where the class
 * says so. */
static void add_output_error(const fd_bound_work *work) {
    const fd_bound_args *a = work->args;
    const fd_numerics_class *c = work->c;
    if (work->node->op == FD_OP_TOP_K) return; /* ids are integers in every engine */
    bool copy = work->node->op == FD_OP_KV_WRITE;
    if (copy && fd_kv_is_quantised(a->kv_type)) return; /* its bound says all */
    const bool kv = fd_node_is_kv_cache(work->node);    /* a recurrent layer's state is a tensor like others */
    double u = kv ? c->u_kv : c->u_out, tiny = kv ? kv_tiny(c) : c->tiny_out;
    int digits = digits_of(u);
    bool stored = a->stored == FD_F16 || a->stored == FD_BF16;
    if (stored && fd_dtype_roundoff(a->stored) > u) u = fd_dtype_roundoff(a->stored), tiny = fd_dtype_tiny(a->stored);
    const bool late = c->replays_inputs && c->u_mix > 0x1p-24; /* a fused kernel may round a cache as it reads it */
    int64_t n = work->op->n_pos * work->stride;
#pragma omp parallel for if (n > FD_BOUND_MANY / 16)
    for (int64_t i = 0; i < n; i++) {
        double most = fabs(work->y[i]);
        if (a->candidate && isfinite(a->candidate[i]) && !(most >= fabs(a->candidate[i]))) most = fabs(a->candidate[i]);
        bool fits = copy && !stored && !late && fd_rounding_error(work->y[i], digits, tiny) == 0; /* is of it already */
        double own = fits || isinf(most) ? 0 : (c->typical ? FD_BOUND_TYPICAL : 2) * u * most + tiny; /* masked: -inf */
        double tau = work->tau[i] + own;
        work->tau[i] = isfinite(work->y[i]) && !(tau <= FD_BOUND_UNKNOWN) ? FD_BOUND_UNKNOWN : tau;
    }
}

/* All rows have, as recorded, or none was recorded. Small ones too: a sum of 16 bits that is scaled by a power of two keeps its digits
 * below the least number of the type. */
static bool has_few_bits(const fd_bound_args *args, int64_t n) {
    int digits = digits_of(args->numerics->u_shown);
    for (int64_t i = 0; args->candidate && i < n; i++)
        if (fd_rounding_error(args->candidate[i], digits, 0) > 0) return false;
    return true;
}

/* A product that had, before a bias of binary32 was added: what is left without it lies as near to such a value as the addition
 * rounds. Of other values one in thousands does. */
static bool had_few_bits(const fd_bound_args *args, int64_t n) {
    const fd_op_args *op = args->op;
    const bool experts = op->node->op == FD_OP_EXPERT_MATMUL;
    const fd_weight *bias = experts || op->node->op == FD_OP_MATMUL ? op->weight[1] : NULL;
    double u = args->numerics->u_shown;
    for (int64_t i = 0; bias && i < n; i++) {
        int64_t row = experts ? fd_expert_of(((const double *)op->in[1])[i / bias->n_col], bias->n_row) : 0;
        if (row < 0) return false;
        double b = (double)fd_weight_row_element(bias, row, i % bias->n_col), c = args->candidate[i], x = c - b;
        double step = ldexp(2 * u, ilogb(x)), off = fabs(x / step - rint(x / step)) * step;
        if (x != 0 && !(off <= 0x1p-23 * (fabs(c) + fabs(b)))) return false;
    }
    return bias != NULL;
}

/* Where the class leaves it to the op what is rounded. */
static fd_numerics_class class_of_op(const fd_bound_args *args, int64_t n) {
    const fd_op_args *op = args->op;
    fd_numerics_class c = *args->numerics;
    if (c.u_shown > 0 && (has_few_bits(args, n) || had_few_bits(args, n))) c = fd_numerics_class_shown(&c);
    bool unsure = c.u_factor > 0 && op->weight[0] && !fd_dot_repeats_factors(&c, op->node, op->weight[0]);
    if (unsure) c.u_in = c.u_factor;
    return c;
}

fd_code fd_bound(const fd_bound_args *args, double *tau, fd_error *err) {
    const fd_op_args *op = args->op;
    const int64_t stride = fd_node_row_stride(op->node, op->n_kv);
    const fd_numerics_class own = class_of_op(args, op->n_pos * stride),
                            inside = fd_numerics_class_inside_attention(&own);
    fd_op kind = op->node->op;
    bool hidden = kind == FD_OP_ATTN_SCORES || kind == FD_OP_ATTN_ALIBI || kind == FD_OP_ATTN_SOFTMAX;
    fd_bound_work work = {
        .args = args, .op = op, .node = op->node, .c = hidden ? &inside : &own, .inside = &inside, .tau = tau};
    work.stride = stride;
    work.y = (const double *)op->out + (op->node->op == FD_OP_KV_WRITE ? op->pos0 * work.stride : 0);
    for (int64_t i = 0; i < op->n_pos * work.stride; i++) tau[i] = 0;
    if (args->numerics->exact) return FD_OK;

    double *e[FD_MAX_INPUTS] = {NULL, NULL};
    fd_code code = FD_OK;
    work.code = &code;
    work.err = err;
    const fd_code prepared = prepare(&work, e, err);
    if (prepared != FD_OK) code = prepared;
    if (code == FD_OK) {
        by_op[op->node->op](&work);
        if (code == FD_OK) add_output_error(&work);
    }
    for (int i = 0; i < FD_MAX_INPUTS; i++) free(e[i]);
    free(work.row);
    free(work.scratch);
    return code;
}
