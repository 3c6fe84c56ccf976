#include "cli/against/forms.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "cli/against/mxfp4.h"

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
    [FD_FORM_FIRST_HALF] = "the first half of each expert's rows, the gate's",
    [FD_FORM_SECOND_HALF] = "the second half of each expert's rows, up's",
    [FD_FORM_FIRST_COLUMNS] = "the first half of each expert's columns, the gate's",
    [FD_FORM_SECOND_COLUMNS] = "the second half of each expert's columns, up's",
    [FD_FORM_DELTA_QKV] = "q of all key heads first, then k, then v",
    [FD_FORM_DELTA_Z] = "z's rows of each key head",
    [FD_FORM_TURNS] = "with the value heads of all key heads in turn",
    [FD_FORM_TURNS_MINUS_EXP] = "as minus its exponential, with the value heads of all key heads in turn",
    [FD_FORM_TURNS_COLUMNS] = "with the columns of all key heads' value heads in turn",
};

const char *fd_form_text(fd_form form) {
    return texts[form];
}

/* Architectures whose GGUF differs from the checkpoint; the first row that fits counts. */
static const struct {
    const char *archs, *tensor;
    fd_form form;
} expected[] = {
    {" llama mistral3 granite granitemoe minicpm smollm3 deepseek olmo xverse baichuan arcee "
     "nanbeige deci ",
     "blk.*.attn_[qk].*", FD_FORM_PAIRS},
    {" gptneox bloom falcon ", "blk.*.attn_qkv.*", FD_FORM_QKV},
    {" gpt2 ", "blk.*.attn_qkv.weight", FD_FORM_TRANSPOSED},
    {" gpt2 ", "blk.*.attn_output.weight", FD_FORM_TRANSPOSED},
    {" gpt2 ", "blk.*.ffn_up.weight", FD_FORM_TRANSPOSED},
    {" gpt2 ", "blk.*.ffn_down.weight", FD_FORM_TRANSPOSED},
    {" qwen3next qwen35 qwen35moe ", "*ssm_norm.weight", FD_FORM_SAME},
    {" gemma gemma2 gemma3 nemotron qwen3next qwen35 qwen35moe ", "*norm.weight", FD_FORM_PLUS_ONE},
    {" mamba mamba2 granitehybrid qwen3next jamba nemotron_h nemotron_h_moe ", "blk.*.ssm_a", FD_FORM_MINUS_EXP},
    {" deepseek2 ", "blk.*.attn_k_b.weight", FD_FORM_K_HEADS},
    {" deepseek2 ", "blk.*.attn_v_b.weight", FD_FORM_V_HEADS},
    {" gpt-oss ", "blk.*.ffn_gate_exps.*", FD_FORM_EVEN},
    {" gpt-oss ", "blk.*.ffn_up_exps.*", FD_FORM_ODD},
    {" gpt-oss qwen3vlmoe ", "blk.*.ffn_down_exps.weight", FD_FORM_TRANSPOSED},
    {" qwen3vlmoe ", "blk.*.ffn_gate_exps.weight", FD_FORM_FIRST_COLUMNS},
    {" qwen3vlmoe ", "blk.*.ffn_up_exps.weight", FD_FORM_SECOND_COLUMNS},
    {" qwen35moe ", "blk.*.ffn_gate_exps.weight", FD_FORM_FIRST_HALF},
    {" qwen35moe ", "blk.*.ffn_up_exps.weight", FD_FORM_SECOND_HALF},
    {" qwen3next ", "blk.*.attn_qkv.weight", FD_FORM_DELTA_QKV},
    {" qwen3next ", "blk.*.attn_gate.weight", FD_FORM_DELTA_Z},
    {" qwen35 qwen35moe ", "blk.*.attn_qkv.weight", FD_FORM_TURNS},
    {" qwen35 qwen35moe ", "blk.*.attn_gate.weight", FD_FORM_TURNS},
    {" qwen35 qwen35moe ", "blk.*.ssm_conv1d.weight", FD_FORM_TURNS},
    {" qwen35 qwen35moe ", "blk.*.ssm_alpha.weight", FD_FORM_TURNS},
    {" qwen35 qwen35moe ", "blk.*.ssm_beta.weight", FD_FORM_TURNS},
    {" qwen35 qwen35moe ", "blk.*.ssm_dt.bias", FD_FORM_TURNS},
    {" qwen35 qwen35moe ", "blk.*.ssm_a", FD_FORM_TURNS_MINUS_EXP},
    {" qwen35 qwen35moe ", "blk.*.ssm_out.weight", FD_FORM_TURNS_COLUMNS},
};

/* Checkpoints of the same model hold experts in one matrix, or a matrix each, which the names tell. */
static bool is_possible(const fd_form_pair *p, fd_form form) {
    const bool one_by_one = p->parts[0]->array.rank == 2;
    if (fd_form_is_mxfp4(p)) return form != FD_FORM_TRANSPOSED;
    return !one_by_one || !strstr(p->tensor->name, "_exps.weight");
}

fd_form fd_form_expected(const char *arch, const fd_form_pair *p) {
    char word[64];
    snprintf(word, sizeof word, " %.60s ", arch);
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        if (strstr(expected[i].archs, word) && fnmatch(expected[i].tensor, p->tensor->name, 0) == 0)
            return is_possible(p, expected[i].form) ? expected[i].form : FD_FORM_SAME;
    return FD_FORM_SAME;
}

bool fd_form_is_mxfp4(const fd_form_pair *p) {
    return p->n == 2 && fd_is_mxfp4(&p->parts[0]->array, &p->parts[1]->array);
}

static bool is_even_or_odd(fd_form form) {
    return form == FD_FORM_EVEN || form == FD_FORM_ODD;
}

/* Gate and up stand in one matrix, which makes two tensors. */
static bool is_half(fd_form form) {
    return form >= FD_FORM_EVEN && form <= FD_FORM_SECOND_COLUMNS;
}

static int64_t count_of(const fd_array *a) {
    int64_t n = 1;
    for (int i = 0; i < a->rank; i++) n *= a->shape[i];
    return n;
}

/* Vectors of any shape, one after the other; or matrices as wide as the tensor. */
static bool parts_fit(const fd_form_pair *p, fd_form form) {
    if (p->n_row == 1) {
        int64_t n = 0;
        for (size_t i = 0; i < p->n; i++) n += count_of(&p->parts[i]->array);
        return n == p->n_col && !is_half(form);
    }
    for (size_t i = 0; i < p->n; i++) {
        const fd_array *a = &p->parts[i]->array;
        if (a->rank > 3 || fd_form_matrices(a, form).shape[2] != p->n_col) return false;
    }
    return true;
}

static bool k_heads_fit(const fd_form_pair *p, const fd_array *a) { /* [n_head · (K + V), rank] */
    const int64_t n_head = p->heads.n_head;
    return p->n == 1 && p->n_row > 1 && a->rank == 2 && p->n_row % n_head == 0 && a->shape[1] == p->n_row / n_head &&
           a->shape[0] % n_head == 0 && a->shape[0] / n_head >= p->n_col;
}

static bool delta_fits(const fd_form_pair *p, fd_form form, const fd_array *a) {
    const fd_form_heads *h = &p->heads;
    const int64_t n_key = h->n_key_head * h->key_dim;
    return p->n == 1 && p->n_row > 1 && n_key > 0 && h->n_value % h->n_key_head == 0 &&
           a->shape[0] == 2 * (n_key + h->n_value) &&
           p->n_row == (form == FD_FORM_DELTA_Z ? h->n_value : 2 * n_key + h->n_value);
}

bool fd_form_fits(const fd_form_pair *p, fd_form form) {
    const bool vector = p->n_row == 1;
    const int64_t n_row = vector ? p->n_col : p->n_row, n_head = p->heads.n_head, n_kv = p->heads.n_head_kv;
    const fd_array *first = &p->parts[0]->array;
    if (fd_form_is_mxfp4(p))
        return (form == FD_FORM_SAME || is_even_or_odd(form)) && p->n_col == fd_mxfp4_width(first) &&
               (form == FD_FORM_SAME || fd_mxfp4_rows(first) % 2 == 0);
    if (form == FD_FORM_K_HEADS) return k_heads_fit(p, first);
    if (!parts_fit(p, form)) return false;
    if (is_half(form)) { /* gate and up of as many rows; a bias [experts, 2n] */
        const fd_array whole = fd_form_matrices(first, FD_FORM_SAME), half = fd_form_matrices(first, form);
        return p->n == 1 && (first->rank == 3 || is_even_or_odd(form)) && half.shape[0] * half.shape[1] == n_row &&
               2 * half.shape[0] * half.shape[1] * half.shape[2] == count_of(&whole);
    }
    switch (form) {
    case FD_FORM_V_HEADS:
        return p->n == 1 && !vector && n_row % n_head == 0 && first->shape[0] % n_head == 0 && first->shape[0] > n_row;
    case FD_FORM_PAIRS:
    case FD_FORM_HALVES:
        return p->n == 1 &&
               (fnmatch("*attn_q.*", p->tensor->name, 0) == 0 || fnmatch("*attn_k.*", p->tensor->name, 0) == 0) &&
               n_row % (2 * n_head) == 0 && n_row % (2 * n_kv) == 0;
    case FD_FORM_QKV: return p->n == 1 && strstr(p->tensor->name, "attn_qkv") && n_row % (n_head + 2 * n_kv) == 0;
    case FD_FORM_TRANSPOSED: return !vector && p->n == 1;
    case FD_FORM_DELTA_QKV:
    case FD_FORM_DELTA_Z: return delta_fits(p, form, first);
    case FD_FORM_TURNS:
    case FD_FORM_TURNS_MINUS_EXP: return p->n == 1 && fd_form_of_value_heads(&p->heads, n_row) > 0;
    case FD_FORM_TURNS_COLUMNS:
        return p->n == 1 && !vector && p->n_col == p->heads.n_value && fd_form_of_value_heads(&p->heads, p->n_col) > 0;
    case FD_FORM_PLUS_ONE:
    case FD_FORM_MINUS_ONE: return vector;
    default: return true;
    }
}

/* Rows that the part makes; a part of a matrix is taken for what is asked of it. */
static int64_t rows_of(const fd_form_pair *p, const fd_array *a, fd_form form) {
    if (fd_form_is_mxfp4(p)) return a->rank == 3 ? 0 : fd_mxfp4_rows(a) / (is_even_or_odd(form) ? 2 : 1);
    if (form == FD_FORM_K_HEADS || form == FD_FORM_V_HEADS || form == FD_FORM_DELTA_QKV || form == FD_FORM_DELTA_Z)
        return p->n_row; /* some rows of a matrix make the tensor, and others make another */
    const fd_array matrices = fd_form_matrices(a, form);
    return matrices.shape[0] * matrices.shape[1];
}

int64_t fd_form_rows_there(const fd_form_pair *p, fd_form form) {
    int64_t there = 0;
    if (p->n_row == 1) return 1;
    for (size_t i = 0; i < p->n; i++) there += rows_of(p, &p->parts[i]->array, form);
    return there;
}
