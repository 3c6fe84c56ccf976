#include "cli/against/forms.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/against/mxfp4.h"
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
    [FD_FORM_EVEN] = "the even rows, the gate's",
    [FD_FORM_ODD] = "the odd rows, up's",
    [FD_FORM_DELTA_QKV] = "q of all key heads first, then k, then v",
    [FD_FORM_DELTA_Z] = "z's rows of each key head",
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
    {" mamba mamba2 granitehybrid qwen3next jamba nemotron_h nemotron_h_moe ", "blk.*.ssm_a", FD_FORM_MINUS_EXP},
    {" deepseek2 ", "blk.*.attn_k_b.weight", FD_FORM_K_HEADS},
    {" deepseek2 ", "blk.*.attn_v_b.weight", FD_FORM_V_HEADS},
    {" gpt-oss ", "blk.*.ffn_gate_exps.*", FD_FORM_EVEN},
    {" gpt-oss ", "blk.*.ffn_up_exps.*", FD_FORM_ODD},
    {" qwen3next ", "blk.*.attn_qkv.weight", FD_FORM_DELTA_QKV},
    {" qwen3next ", "blk.*.attn_gate.weight", FD_FORM_DELTA_Z},
};

fd_form fd_form_expected(const char *arch, const char *tensor) {
    char word[64];
    snprintf(word, sizeof word, " %.60s ", arch);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strstr(expected[i].archs, word) && fnmatch(expected[i].tensor, tensor, 0) == 0) return expected[i].form;
    return FD_FORM_SAME;
}

bool fd_form_is_mxfp4(const fd_form_pair *p) {
    return p->n == 2 && fd_is_mxfp4(&p->parts[0]->array, &p->parts[1]->array);
}

static bool is_every_other(fd_form form) {
    return form == FD_FORM_EVEN || form == FD_FORM_ODD;
}

/* Of each key head q, k, v and z follow each other. */
static int64_t delta_row(const fd_form_heads *h, fd_form form, int64_t r) {
    const int64_t q = h->key_dim, v = h->n_value / h->n_key_head, each = 2 * q + 2 * v, n_key = q * h->n_key_head;
    if (form == FD_FORM_DELTA_Z) return r / v * each + 2 * q + v + r % v;
    if (r < 2 * n_key) return r % n_key / q * each + r / n_key * q + r % q;
    return (r - 2 * n_key) / v * each + 2 * q + (r - 2 * n_key) % v;
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
    if (form == FD_FORM_DELTA_QKV || form == FD_FORM_DELTA_Z) return delta_row(&p->heads, form, r);
    if (form == FD_FORM_V_HEADS) { /* the last rows of each head */
        const int64_t each = n_row / n_head, there = p->parts[0]->array.shape[0] / n_head;
        return r / each * there + there - each + r % each;
    }
    if (form != FD_FORM_PAIRS && form != FD_FORM_HALVES) return r;
    const int64_t heads = strstr(p->tensor->name, "attn_k") ? n_kv : n_head, each = n_row / heads, i = r % each;
    return r - i + (form == FD_FORM_PAIRS ? i % 2 * (each / 2) + i / 2 : i % (each / 2) * 2 + i / (each / 2));
}

bool fd_form_fits(const fd_form_pair *p, fd_form form) {
    const bool vector = p->n_row == 1;
    const int64_t n_row = vector ? p->n_col : p->n_row, n_head = p->heads.n_head, n_kv = p->heads.n_head_kv;
    const fd_array *first = &p->parts[0]->array;
    if (fd_form_is_mxfp4(p))
        return (form == FD_FORM_SAME || is_every_other(form)) && p->n_col == fd_mxfp4_width(first) &&
               (form == FD_FORM_SAME || fd_mxfp4_rows(first) % 2 == 0);
    if (is_every_other(form)) /* biases [experts, 2n] */
        return p->n == 1 && first->rank == 2 && first->shape[0] == p->n_row && first->shape[1] == 2 * p->n_col;
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
    case FD_FORM_DELTA_QKV:
    case FD_FORM_DELTA_Z: {
        const fd_form_heads *h = &p->heads;
        const int64_t n_key = h->n_key_head * h->key_dim;
        return p->n == 1 && !vector && n_key > 0 && h->n_value % h->n_key_head == 0 &&
               first->shape[0] == 2 * (n_key + h->n_value) &&
               n_row == (form == FD_FORM_DELTA_Z ? h->n_value : 2 * n_key + h->n_value);
    }
    case FD_FORM_PLUS_ONE:
    case FD_FORM_MINUS_ONE: return vector;
    default: return true;
    }
}

/* Some rows of a matrix make the tensor, and others make another. */
static bool is_part(fd_form form) {
    return form == FD_FORM_K_HEADS || form == FD_FORM_V_HEADS || form == FD_FORM_DELTA_QKV || form == FD_FORM_DELTA_Z;
}

/* Rows that the part makes; a part of a matrix is taken for what is asked of it. */
static int64_t rows_of(const fd_form_pair *p, const fd_array *a, fd_form form) {
    if (fd_form_is_mxfp4(p)) return a->rank == 3 ? 0 : fd_mxfp4_rows(a) / (is_every_other(form) ? 2 : 1);
    if (is_part(form) || is_every_other(form)) return p->n_row;
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

/* Of gpt-oss's experts: a matrix in blocks, of which every second row may be asked for, or of a bias every second
 * element. */
static void fetch_every_other(const fd_form_pair *p, fd_form form, int64_t r, double *to) {
    const int64_t odd = form == FD_FORM_ODD;
    if (fd_form_is_mxfp4(p)) {
        fd_mxfp4_fetch(&p->parts[0]->array, &p->parts[1]->array, form == FD_FORM_SAME ? r : 2 * r + odd, to);
        return;
    }
    const fd_array row = fd_array_at(&p->parts[0]->array, 0, r);
    for (int64_t i = 0; i < p->n_col; i++) {
        const fd_array one = fd_array_at(&row, 0, 2 * i + odd);
        fd_array_fetch(&one, &to[i]);
    }
}

/* Row r of the tensor as the form has it, its values as the checkpoint has them. */
static void fetch_values(const fd_form_pair *p, fd_form form, int64_t r, double *to) {
    if (fd_form_is_mxfp4(p) || is_every_other(form)) {
        fetch_every_other(p, form, r, to);
        return;
    }
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
        const int64_t n_there = is_part(form) ? a->shape[0] : rows_of(p, a, form);
        if (from >= n_there) {
            from -= n_there;
            continue;
        }
        const fd_array row = fd_array_at(a, form == FD_FORM_TRANSPOSED ? 1 : 0, from);
        fd_array_fetch(&row, to);
        return;
    }
}

void fd_form_fetch_row(const fd_form_pair *p, fd_form form, int64_t r, double *to) {
    fetch_values(p, form, r, to);
    for (int64_t i = 0; form == FD_FORM_MINUS_EXP && i < p->n_col; i++) to[i] = -exp(to[i]);
}

int64_t fd_form_rows_there(const fd_form_pair *p, fd_form form) {
    int64_t there = 0;
    for (size_t i = 0; i < p->n; i++) there += rows_of(p, &p->parts[i]->array, form);
    return there;
}
