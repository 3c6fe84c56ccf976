#include "cli/against/forms.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/quant.h"

static const char *const texts[FD_FORM_COUNT] = {
    [FD_FORM_SAME] = "as the checkpoint has it",
    [FD_FORM_PAIRS] = "with the rows of each head in neighbouring pairs",
    [FD_FORM_HALVES] = "with the rows of each head in halves",
    [FD_FORM_QKV] = "with Q of all heads first, then K, then V",
    [FD_FORM_TRANSPOSED] = "transposed",
    [FD_FORM_PLUS_ONE] = "with 1 added",
    [FD_FORM_MINUS_ONE] = "with 1 subtracted",
    [FD_FORM_MINUS_EXP] = "as minus its exponential",
    [FD_FORM_K_HEADS] = "K's rows of each head, transposed",
    [FD_FORM_V_HEADS] = "V's rows of each head",
};

const char *fd_form_text(fd_form form) {
    return texts[form];
}

/* Architectures whose GGUF differs from the checkpoint; the first row that fits counts. */
static const struct {
    const char *archs, *tensor;
    fd_form form;
} expected[] = {
    {" llama mistral3 granite granitemoe minicpm smollm3 deepseek olmo xverse baichuan arcee ", "blk.*.attn_[qk].*",
     FD_FORM_PAIRS},
    {" gptneox bloom falcon ", "blk.*.attn_qkv.*", FD_FORM_QKV},
    {" gpt2 ", "blk.*.attn_qkv.weight", FD_FORM_TRANSPOSED},
    {" gpt2 ", "blk.*.attn_output.weight", FD_FORM_TRANSPOSED},
    {" gpt2 ", "blk.*.ffn_up.weight", FD_FORM_TRANSPOSED},
    {" gpt2 ", "blk.*.ffn_down.weight", FD_FORM_TRANSPOSED},
    {" qwen3next ", "*ssm_norm.weight", FD_FORM_SAME},
    {" gemma gemma2 gemma3 nemotron qwen3next ", "*norm.weight", FD_FORM_PLUS_ONE},
    {" mamba mamba2 granitehybrid qwen3next ", "blk.*.ssm_a", FD_FORM_MINUS_EXP},
    {" deepseek2 ", "blk.*.attn_k_b.weight", FD_FORM_K_HEADS},
    {" deepseek2 ", "blk.*.attn_v_b.weight", FD_FORM_V_HEADS},
};

fd_form fd_form_expected(const char *arch, const char *tensor) {
    char word[64];
    snprintf(word, sizeof word, " %.60s ", arch);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strstr(expected[i].archs, word) && fnmatch(expected[i].tensor, tensor, 0) == 0) return expected[i].form;
    return FD_FORM_SAME;
}

/* Root mean square errors that rounding alone may leave, of a tensor whose values are 1: two to three times what each
 * format costs normally distributed weights. A wrong order of rows costs 1.4, zeros cost 1. */
static const struct {
    uint32_t dtype;
    double limit;
} limits[] = {
    {FD_Q8_0, 0.02},   {FD_Q6_K, 0.05},   {FD_Q5_K, 0.08},   {FD_Q5_1, 0.1},  {FD_Q5_0, 0.12},  {FD_Q4_K, 0.16},
    {FD_Q4_1, 0.18},   {FD_IQ4_NL, 0.18}, {FD_IQ4_XS, 0.18}, {FD_Q4_0, 0.2},  {FD_NVFP4, 0.25}, {FD_MXFP4, 0.3},
    {FD_Q3_K, 0.35},   {FD_IQ3_S, 0.35},  {FD_IQ3_XXS, 0.4}, {FD_Q2_K, 0.5},  {FD_IQ2_S, 0.55}, {FD_IQ2_XS, 0.6},
    {FD_IQ2_XXS, 0.6}, {FD_IQ1_M, 0.8},   {FD_IQ1_S, 0.8},   {FD_TQ1_0, 0.8}, {FD_TQ2_0, 0.8},
};

static double limit_of(uint32_t dtype) {
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        if (limits[i].dtype == dtype) return limits[i].limit;
    return 0;
}

/* A float type's unit roundoff and the spacing of its subnormals. The addition of 1 may have been made in the
 * checkpoint's type. */
static void rounding_of(const fd_form_pair *p, fd_form form, double *u, double *tiny) {
    *u = p->tensor->dtype == FD_F16 ? 0x1p-11 : p->tensor->dtype == FD_BF16 ? 0x1p-8 : 0;
    *tiny = p->tensor->dtype == FD_F16 ? 0x1p-25 : 0;
    if (form == FD_FORM_MINUS_EXP) *u += 0x1p-21; /* binary32's exponential */
    if (form != FD_FORM_PLUS_ONE && form != FD_FORM_MINUS_ONE) return;
    const fd_array_type type = p->parts[0]->array.type;
    *u += type == FD_ARRAY_F16 ? 0x1p-11 : type == FD_ARRAY_BF16 ? 0x1p-8 : 0x1p-23;
}

/* Which row of the checkpoint a row is. */
static int64_t source_row(const fd_form_pair *p, fd_form form, int64_t r) {
    const int64_t n_row = p->n_row == 1 ? p->n_col : p->n_row; /* a bias: its elements */
    const int64_t n_head = p->heads.n_head, n_kv = p->heads.n_head_kv;
    if (form == FD_FORM_QKV) {
        const int64_t each = n_row / (n_head + 2 * n_kv), group = n_head / n_kv, head = r / each;
        if (head < n_head) return (head / group * (group + 2) + head % group) * each + r % each;
        const int64_t kv = (head - n_head) % n_kv, which = (head - n_head) / n_kv;
        return (kv * (group + 2) + group + which) * each + r % each;
    }
    if (form == FD_FORM_V_HEADS) { /* the last rows of each head */
        const int64_t each = n_row / n_head, there = p->parts[0]->array.shape[0] / n_head;
        return r / each * there + there - each + r % each;
    }
    if (form != FD_FORM_PAIRS && form != FD_FORM_HALVES) return r;
    const int64_t heads = strstr(p->tensor->name, "attn_k") ? n_kv : n_head, each = n_row / heads, i = r % each;
    return r - i + (form == FD_FORM_PAIRS ? i % 2 * (each / 2) + i / 2 : i % (each / 2) * 2 + i / (each / 2));
}

static bool form_fits(const fd_form_pair *p, fd_form form) {
    const bool vector = p->n_row == 1;
    const int64_t n_row = vector ? p->n_col : p->n_row, n_head = p->heads.n_head, n_kv = p->heads.n_head_kv;
    for (size_t i = 0; i < p->n; i++) {
        const fd_array *a = &p->parts[i]->array;
        /* [1, n] and [n, 1] are vectors too */
        if (vector && a->rank != 1 && !(a->rank == 2 && (a->shape[0] == 1 || a->shape[1] == 1))) return false;
        if (form == FD_FORM_K_HEADS) /* [n_head · (K + V), rank] */
            return p->n == 1 && a->rank == 2 && n_row % n_head == 0 && a->shape[1] == n_row / n_head &&
                   a->shape[0] % n_head == 0 && a->shape[0] / n_head >= p->n_col;
        if (!vector && (a->rank != 2 || a->shape[form == FD_FORM_TRANSPOSED ? 0 : 1] != p->n_col)) return false;
    }
    switch (form) {
    case FD_FORM_V_HEADS:
        return p->n == 1 && !vector && n_row % n_head == 0 && p->parts[0]->array.shape[0] % n_head == 0 &&
               p->parts[0]->array.shape[0] > n_row;
    case FD_FORM_PAIRS:
    case FD_FORM_HALVES:
        return p->n == 1 &&
               (fnmatch("*attn_q.*", p->tensor->name, 0) == 0 || fnmatch("*attn_k.*", p->tensor->name, 0) == 0) &&
               n_row % (2 * n_head) == 0 && n_row % (2 * n_kv) == 0;
    case FD_FORM_QKV: return p->n == 1 && strstr(p->tensor->name, "attn_qkv") && n_row % (n_head + 2 * n_kv) == 0;
    case FD_FORM_TRANSPOSED: return !vector && p->n == 1;
    case FD_FORM_PLUS_ONE:
    case FD_FORM_MINUS_ONE: return vector;
    default: return true;
    }
}

/* Rows that the part makes; a part of a matrix is taken for what is asked of it. */
static int64_t rows_of(const fd_form_pair *p, const fd_array *a, fd_form form) {
    if (form == FD_FORM_K_HEADS || form == FD_FORM_V_HEADS) return p->n_row;
    return a->rank == 1 ? 1 : a->shape[form == FD_FORM_TRANSPOSED ? 1 : 0];
}

/* Row r of K by heads: of head h, for element c of the compressed row, the head's column c. */
static void fetch_k_head(const fd_form_pair *p, int64_t r, double *to) {
    const fd_array *a = &p->parts[0]->array;
    const int64_t rank = a->shape[1], each = a->shape[0] / p->heads.n_head;
    const fd_array column = fd_array_at(a, 1, r % rank);
    for (int64_t i = 0; i < p->n_col; i++) {
        const fd_array one = fd_array_at(&column, 0, r / rank * each + i);
        fd_array_fetch(&one, &to[i]);
    }
}

/* Row r of the tensor as the form has it, its values as the checkpoint has them. */
static void fetch_values(const fd_form_pair *p, fd_form form, int64_t r, double *to) {
    if (p->n_row == 1) { /* a vector, or several of them one after the other */
        double *all = malloc(sizeof *all * (size_t)p->n_col);
        int64_t at = 0;
        for (size_t i = 0; i < p->n && all; i++) {
            int64_t n = 1;
            for (int k = 0; k < p->parts[i]->array.rank; k++) n *= p->parts[i]->array.shape[k];
            if (at + n <= p->n_col) fd_array_fetch(&p->parts[i]->array, all + at);
            at += n;
        }
        const double offset = form == FD_FORM_PLUS_ONE ? 1 : form == FD_FORM_MINUS_ONE ? -1 : 0;
        for (int64_t i = 0; i < p->n_col; i++)
            to[i] = all && at == p->n_col ? all[source_row(p, form, i)] + offset : NAN;
        free(all);
        return;
    }
    if (form == FD_FORM_K_HEADS) {
        fetch_k_head(p, r, to);
        return;
    }
    int64_t from = source_row(p, form, r);
    for (size_t i = 0; i < p->n; i++) {
        const fd_array *a = &p->parts[i]->array;
        const int64_t n_there = form == FD_FORM_V_HEADS ? a->shape[0] : rows_of(p, a, form);
        if (from >= n_there) {
            from -= n_there;
            continue;
        }
        const fd_array row = fd_array_at(a, form == FD_FORM_TRANSPOSED ? 1 : 0, from);
        fd_array_fetch(&row, to);
        return;
    }
}

static void fetch_row(const fd_form_pair *p, fd_form form, int64_t r, double *to) {
    fetch_values(p, form, r, to);
    for (int64_t i = 0; form == FD_FORM_MINUS_EXP && i < p->n_col; i++) to[i] = -exp(to[i]);
}

typedef struct row_sums {
    double error, power, product; /* Σ(g − f·h)², Σ(f·h)², Σ g·h */
    bool exact, agrees;
} row_sums;

static row_sums compare_row(const fd_form_pair *p, fd_form form, double factor, int64_t r, float *g, double *h) {
    const fd_gguf_tensor *t = p->tensor;
    row_sums s = {.exact = true, .agrees = true};
    double u, tiny, limit = limit_of(t->dtype);
    rounding_of(p, form, &u, &tiny);
    fd_dequantize_row(t->dtype, (const char *)t->data + r * fd_dtype_row_bytes(t->dtype, p->n_col), g, p->n_col);
    fetch_row(p, form, r, h);
    for (int64_t i = 0; i < p->n_col; i++) {
        const double x = (double)g[i], y = h[i] * factor, d = x - y;
        s.error += d * d;
        s.power += y * y;
        s.product += x * h[i];
        s.exact = s.exact && d == 0;
        /* a factor is known to about 2^-20 */
        if (limit == 0) s.agrees = s.agrees && fabs(d) <= (u + (factor == 1 ? 0 : 0x1p-18)) * fabs(y) + tiny;
    }
    if (limit > 0) s.agrees = s.error <= 9 * limit * limit * s.power; /* a row may be three times as bad as a tensor */
    return s;
}

fd_code fd_form_compare(const fd_form_pair *p, fd_form form, double factor, int64_t most, fd_form_distance *out,
                        fd_error *err) {
    *out = (fd_form_distance){.fits = form_fits(p, form), .exact = true, .agrees = true, .first_wrong = -1};
    if (!out->fits) return FD_OK;
    int64_t there = 0;
    for (size_t i = 0; i < p->n; i++) there += rows_of(p, &p->parts[i]->array, form);
    out->n_row_there = there;
    const int64_t common = p->n_row == 1 ? 1 : p->n_row < there ? p->n_row : there;
    const int64_t step = most > 0 && common > most ? common / most : 1;
    double error = 0, power = 0, product = 0;
    bool failed = false;
    int64_t first = INT64_MAX, n_wrong = 0, n_inexact = 0, n_row = 0;
#pragma omp parallel reduction(+ : error, power, product, n_wrong, n_inexact, n_row) reduction(min : first) reduction(|| : failed)
    {
        float *g = malloc(sizeof *g * (size_t)p->n_col);
        double *h = malloc(sizeof *h * (size_t)p->n_col);
        failed = !g || !h;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < common; r += step) {
            if (failed) continue;
            const row_sums s = compare_row(p, form, factor, r, g, h);
            error += s.error;
            power += s.power;
            product += s.product;
            n_row++;
            n_inexact += !s.exact;
            n_wrong += !s.agrees;
            if (!s.agrees && r < first) first = r;
        }
        free(g);
        free(h);
    }
    if (failed) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", p->tensor->name);
    const double limit = limit_of(p->tensor->dtype);
    out->error = power > 0 ? sqrt(error / power) : error > 0 ? INFINITY : 0;
    out->factor = power > 0 ? product / power * factor * factor : 1;
    out->exact = n_inexact == 0;
    out->agrees = n_wrong == 0 && (limit == 0 || out->error <= limit);
    out->n_row = n_row;
    out->n_wrong = n_wrong;
    out->first_wrong = n_wrong ? first : -1;
    return FD_OK;
}
