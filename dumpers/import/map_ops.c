/* What the operations of a rule do to the tensor of one position. */
#include <math.h>
#include <string.h>

#include "dumpers/import/array.h"
#include "dumpers/import/map_internal.h"

typedef struct row { /* a tensor on its way through the operations */
    int rank;
    int64_t shape[FD_ARRAY_MAX_RANK];
    double *data, *scratch; /* data NULL: shapes only */
} row;

static int64_t count(const row *r) {
    int64_t n = 1;
    for (int i = 0; i < r->rank; i++) n *= r->shape[i];
    return n;
}

static void swap_buffers(row *r) {
    double *data = r->data;
    r->data = r->scratch;
    r->scratch = data;
}

static bool reshape(row *r, const fd_name_map_op *op) {
    int64_t known = 1, n = count(r);
    int open = -1;
    for (int i = 0; i < op->n_arg; i++) {
        if (op->arg[i] < 0) open = i;
        if (op->arg[i] > 0 && __builtin_mul_overflow(known, op->arg[i], &known)) return false;
    }
    if (open < 0 ? known != n : n % known != 0) return false;
    r->rank = op->n_arg;
    for (int i = 0; i < op->n_arg; i++) r->shape[i] = i == open ? n / known : op->arg[i];
    return true;
}

static bool permute(row *r, const int64_t *order, int n) {
    if (n != r->rank) return false;
    int64_t stride[FD_ARRAY_MAX_RANK], step = 1, total = count(r), shape[FD_ARRAY_MAX_RANK];
    for (int i = n - 1; i >= 0; i--) {
        stride[i] = step;
        step *= r->shape[i];
    }
    for (int i = 0; i < n; i++) shape[i] = r->shape[order[i]];
    if (r->data) {
        int64_t index[FD_ARRAY_MAX_RANK] = {0};
        for (int64_t out = 0; out < total; out++) {
            int64_t from = 0;
            for (int i = 0; i < n; i++) from += index[i] * stride[order[i]];
            r->scratch[out] = r->data[from];
            for (int i = n - 1; i >= 0 && ++index[i] == shape[i]; i--) index[i] = 0;
        }
        swap_buffers(r);
    }
    memcpy(r->shape, shape, sizeof(int64_t) * (size_t)n);
    return true;
}

static bool transpose(row *r) {
    int64_t order[FD_ARRAY_MAX_RANK];
    if (r->rank < 2) return false;
    for (int i = 0; i < r->rank; i++) order[i] = i;
    order[r->rank - 1] = r->rank - 2;
    order[r->rank - 2] = r->rank - 1;
    return permute(r, order, r->rank);
}

/* Of an array that has the axis of heads already, as engines also save it, nothing is left to do. */
static bool heads(row *r, int64_t n) {
    if (r->rank >= 2 && n > 1 && r->shape[r->rank - 2] == n) return true;
    if (r->rank < 1 || r->rank == FD_ARRAY_MAX_RANK || n < 1 || r->shape[r->rank - 1] % n != 0) return false;
    r->shape[r->rank] = r->shape[r->rank - 1] / n;
    r->shape[r->rank - 1] = n;
    r->rank++;
    return true;
}

static bool slice(row *r, int64_t from, int64_t to) {
    if (r->rank < 1 || from >= to || to > r->shape[r->rank - 1]) return false;
    int64_t width = r->shape[r->rank - 1], keep = to - from, n = count(r) / width;
    if (r->data)
        for (int64_t i = 0; i < n; i++)
            memmove(r->data + i * keep, r->data + i * width + from, sizeof(double) * (size_t)keep);
    r->shape[r->rank - 1] = keep;
    return true;
}

const fd_fused_part fd_fused_parts[FD_FUSED_PART_COUNT] = {
    {"q", 0, 0, 0, 'q'},    {"k", 1, 0, 0, 'k'},  {"v", 1, 1, 0, 'k'},
    {"gate", 0, 0, 0, 'f'}, {"up", 0, 0, 1, 'f'}, {"rows", 0, 0, 0, 'r'},
};

bool fd_fused_part_place(const fd_fused_part *part, const fd_name_map_values *values, fd_fused_place *out) {
    const int64_t *of = values->of;
    const int64_t q = of[FD_NAME_MAP_N_HEAD] * of[FD_NAME_MAP_HEAD_DIM],
                  kv = of[FD_NAME_MAP_N_HEAD_KV] * of[FD_NAME_MAP_HEAD_DIM], ff = of[FD_NAME_MAP_N_FF];
    const bool of_ffn = part->is == 'f';
    if (part->is == 'r') return *out = values->rows, values->rows.width > 0;
    *out = (fd_fused_place){.first = part->q * q + part->kv * kv + part->ff * ff,
                            .n = of_ffn            ? ff
                                 : part->is == 'q' ? q
                                                   : kv,
                            .width = of_ffn ? 2 * ff : q + 2 * kv};
    return of_ffn ? ff > 0 : q > 0 && kv > 0;
}

const fd_fused_part *fd_name_map_part(const fd_name_map_rule *rule) {
    for (int i = 0; i < rule->n_op; i++)
        if (rule->ops[i].kind == FD_NAME_MAP_PART) return &fd_fused_parts[rule->ops[i].arg[0]];
    return NULL;
}

/* `apart`: pairs (2i, 2i+1) to halves; else halves to pairs. */
static bool interleave(row *r, bool apart) {
    if (r->rank < 1 || r->shape[r->rank - 1] % 2 != 0 || r->shape[r->rank - 1] == 0) return false;
    int64_t width = r->shape[r->rank - 1], half = width / 2, n = count(r) / width;
    if (!r->data) return true;
    for (int64_t h = 0; h < n; h++)
        for (int64_t i = 0; i < half; i++) {
            int64_t pair = h * width + 2 * i, split = h * width + i;
            r->scratch[apart ? split : pair] = r->data[apart ? pair : split];
            r->scratch[apart ? split + half : pair + 1] = r->data[apart ? pair + 1 : split + half];
        }
    swap_buffers(r);
    return true;
}

static void scale(row *r, const fd_name_map_op *op, double operand) {
    double x = op->root ? sqrt(operand) : operand;
    if (op->inverse) x = 1 / x;
    int64_t n = r->data ? count(r) : 0;
    for (int64_t i = 0; i < n; i++) r->data[i] *= x;
}

/* After heads=n_head_kv: each K/V head's Q heads, its K and its V are a row of their own. Becomes [heads, head_dim]. */
static bool part_of_groups(row *r, const fd_fused_part *part, const fd_name_map_values *values) {
    const int64_t *of = values->of, n_kv = of[FD_NAME_MAP_N_HEAD_KV], d = of[FD_NAME_MAP_HEAD_DIM];
    const int64_t first = part->q * (of[FD_NAME_MAP_N_HEAD] / n_kv) * d + part->kv * d;
    const int64_t n = part->is == 'q' ? of[FD_NAME_MAP_N_HEAD] / n_kv * d : d;
    if (!slice(r, first, first + n)) return false;
    r->shape[0] *= n / d;
    r->shape[1] = d;
    return true;
}

static bool part(row *r, const fd_name_map_op *op, const fd_name_map_values *values) {
    fd_fused_place place;
    const fd_fused_part *of = &fd_fused_parts[op->arg[0]];
    const int64_t n_kv = values->of[FD_NAME_MAP_N_HEAD_KV];
    if (r->rank == 2 && (of->is == 'q' || of->is == 'k') && r->shape[0] == n_kv &&
        fd_fused_part_place(of, values, &place) && r->shape[1] * n_kv == place.width)
        return part_of_groups(r, of, values);
    return fd_fused_part_place(&fd_fused_parts[op->arg[0]], values, &place) && r->rank > 0 &&
           r->shape[r->rank - 1] == place.width && slice(r, place.first, place.first + place.n);
}

static double operand_of(const fd_name_map_op *op, const fd_name_map_values *values) {
    return op->variable == FD_NAME_MAP_ATTN_SCALE ? values->attn_scale
           : op->variable                         ? (double)values->of[op->variable]
                                                  : op->number;
}

/* What the operation needs to know of the model and nothing says; NULL: it knows all. */
static const char *lacks(const fd_name_map_op *op, const fd_name_map_values *values) {
    fd_fused_place unused;
    if (op->variable && operand_of(op, values) <= 0) return fd_name_map_variables[op->variable];
    if (op->kind == FD_NAME_MAP_ROPE_HALVES && values->rope_neighbours < 0) return "RoPE's pairs";
    if (op->kind == FD_NAME_MAP_PART && !fd_fused_part_place(&fd_fused_parts[op->arg[0]], values, &unused))
        return "the parts' widths";
    return NULL;
}

static bool apply(row *r, const fd_name_map_op *op, const fd_name_map_values *values) {
    const double operand = operand_of(op, values);
    switch (op->kind) {
    case FD_NAME_MAP_RESHAPE: return reshape(r, op);
    case FD_NAME_MAP_PERMUTE: return permute(r, op->arg, op->n_arg);
    case FD_NAME_MAP_TRANSPOSE: return transpose(r);
    case FD_NAME_MAP_HEADS: return heads(r, (int64_t)operand);
    case FD_NAME_MAP_SLICE: return slice(r, op->arg[0], op->variable ? (int64_t)operand : op->arg[1]);
    case FD_NAME_MAP_PART: return part(r, op, values);
    case FD_NAME_MAP_SCALE: return scale(r, op, operand), true;
    case FD_NAME_MAP_INTERLEAVE: return interleave(r, false);
    case FD_NAME_MAP_DEINTERLEAVE: return interleave(r, true);
    case FD_NAME_MAP_ROPE_HALVES: return !values->rope_neighbours || interleave(r, false);
    case FD_NAME_MAP_OPERATION_COUNT: break;
    }
    return false;
}

int64_t fd_name_map_sliced(const fd_name_map_rule *rule, const fd_name_map_values *values, int64_t width) {
    row r = {.rank = 1, .shape = {width}};
    for (int i = 0; i < rule->n_op && rule->ops[i].kind == FD_NAME_MAP_SLICE; i++)
        if (lacks(&rule->ops[i], values) || !apply(&r, &rule->ops[i], values)) return -1;
    return r.shape[0];
}

fd_code fd_name_map_apply(const fd_name_map *map, const fd_name_map_rule *rule, const fd_name_map_values *values,
                          int *rank, int64_t *shape, double **data, double **scratch, fd_error *err) {
    row r = {.rank = *rank, .data = data ? *data : NULL, .scratch = data ? *scratch : NULL};
    memcpy(r.shape, shape, sizeof(int64_t) * (size_t)*rank);
    char text[128];
    for (int i = 0; i < rule->n_op; i++) {
        const fd_name_map_op *op = &rule->ops[i];
        const char *lacking = lacks(op, values);
        if (lacking)
            return fd_fail(err, FD_ERR_INPUT, "%s:%d: %s needs %s, which nothing says: give --model MODEL.gguf",
                           map->name, rule->line, fd_name_map_operations[op->kind].name, lacking);
        if (!apply(&r, op, values))
            return fd_fail(err, FD_ERR_INPUT, "%s:%d: %s does not fit a tensor of shape %s a position", map->name,
                           rule->line, fd_name_map_operations[op->kind].name,
                           fd_array_shape_text(r.rank, r.shape, text));
    }
    *rank = r.rank;
    memcpy(shape, r.shape, sizeof(int64_t) * (size_t)r.rank);
    if (data) {
        *data = r.data;
        *scratch = r.scratch;
    }
    return FD_OK;
}

fd_code fd_name_map_reshape(const fd_name_map *map, const fd_name_map_rule *rule, const fd_name_map_values *values,
                            int64_t n_tok, int *rank, int64_t *shape, fd_error *err) {
    fd_name_map_op op = {.n_arg = rule->n_shape};
    row r = {.rank = *rank};
    char text[128];
    if (rule->n_shape == 0) return FD_OK;
    memcpy(r.shape, shape, sizeof(int64_t) * (size_t)*rank);
    for (int i = 0; i < rule->n_shape; i++) {
        const fd_name_map_dim *dim = &rule->shape[i];
        op.arg[i] = dim->variable == FD_NAME_MAP_N_TOK ? n_tok
                    : dim->variable                    ? values->of[dim->variable]
                                                       : dim->number;
        if (op.arg[i] == 0)
            return fd_fail(err, FD_ERR_INPUT, "%s:%d: shape= needs %s: give --model MODEL.gguf", map->name, rule->line,
                           fd_name_map_variables[dim->variable]);
    }
    if (!reshape(&r, &op))
        return fd_fail(err, FD_ERR_INPUT, "%s:%d: shape= does not fit an array of shape %s in a step of %lld tokens",
                       map->name, rule->line, fd_array_shape_text(*rank, shape, text), (long long)n_tok);
    *rank = r.rank;
    memcpy(shape, r.shape, sizeof(int64_t) * (size_t)r.rank);
    return FD_OK;
}

bool fd_name_map_needs_values(const fd_name_map_rule *rule) {
    for (int i = 0; i < rule->n_op; i++)
        if (rule->ops[i].variable || rule->ops[i].kind == FD_NAME_MAP_ROPE_HALVES ||
            rule->ops[i].kind == FD_NAME_MAP_PART)
            return true;
    return false;
}

bool fd_name_map_computes(const fd_name_map_rule *rule) {
    for (int i = 0; i < rule->n_op; i++)
        if (rule->ops[i].kind == FD_NAME_MAP_SCALE) return true;
    return false;
}
