/* The operations of a rule, as words: "heads=8", "scale=1/sqrt(head_dim)". */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/array.h"
#include "dumpers/import/map_internal.h"

const char *const fd_name_map_variables[FD_NAME_MAP_VARIABLE_COUNT] = {[FD_NAME_MAP_NUMBER] = "",
                                                                       [FD_NAME_MAP_HEAD_DIM] = "head_dim",
                                                                       [FD_NAME_MAP_N_HEAD] = "n_head",
                                                                       [FD_NAME_MAP_N_HEAD_KV] = "n_head_kv",
                                                                       [FD_NAME_MAP_N_EMBD] = "n_embd",
                                                                       [FD_NAME_MAP_N_FF] = "n_ff",
                                                                       [FD_NAME_MAP_N_TOK] = "n_tok",
                                                                       [FD_NAME_MAP_ATTN_SCALE] = "attn_scale",
                                                                       [FD_NAME_MAP_N_EXPERT_USED] = "n_expert_used"};

static fd_name_map_variable find_variable(const char *text, size_t n) {
    for (int i = FD_NAME_MAP_NUMBER + 1; i < FD_NAME_MAP_VARIABLE_COUNT; i++)
        if (strlen(fd_name_map_variables[i]) == n && memcmp(text, fd_name_map_variables[i], n) == 0)
            return (fd_name_map_variable)i;
    return FD_NAME_MAP_NUMBER;
}

/* A number or a variable that ends at the character `end`. */
static bool take_operand(const char *text, char end, fd_name_map_op *op) {
    const char *stop = strchr(text, end);
    size_t n = stop ? (size_t)(stop - text) : 0;
    if (!stop || (end && stop[1])) return false;
    op->variable = find_variable(text, n);
    if (op->variable) return op->variable != FD_NAME_MAP_N_TOK;
    char *after;
    op->number = strtod(text, &after);
    return after == stop && n > 0 && isfinite(op->number);
}

static bool take_scale(const char *text, fd_name_map_op *op) {
    if (strncmp(text, "1/", 2) == 0) {
        op->inverse = true;
        text += 2;
    }
    if (strncmp(text, "sqrt(", 5) == 0) {
        op->root = true;
        text += 5;
    }
    return take_operand(text, op->root ? ')' : '\0', op) &&
           (op->variable || (op->root ? op->number > 0 : op->number != 0));
}

static bool take_list(const char *text, char separator, fd_name_map_op *op) {
    char *end;
    for (op->n_arg = 0; op->n_arg < FD_NAME_MAP_MAX_ARGS; text = end + 1) {
        long long value = strtoll(text, &end, 10);
        if (end == text || value < -1 || value > INT32_MAX) return false;
        op->arg[op->n_arg++] = value;
        if (*end == '\0') return true;
        if (*end != separator) return false;
    }
    return false;
}

static bool take_reshape(const char *text, fd_name_map_op *op) {
    int free_axes = 0;
    if (!take_list(text, ',', op)) return false;
    for (int i = 0; i < op->n_arg; i++) {
        if (op->arg[i] == 0) return false;
        free_axes += op->arg[i] < 0;
    }
    return free_axes <= 1;
}

static bool take_permute(const char *text, fd_name_map_op *op) {
    unsigned seen = 0;
    if (!take_list(text, ',', op)) return false;
    for (int i = 0; i < op->n_arg; i++) {
        if (op->arg[i] < 0 || op->arg[i] >= op->n_arg) return false;
        seen |= 1u << op->arg[i];
    }
    return seen == (1u << op->n_arg) - 1;
}

static bool take_slice(const char *text, fd_name_map_op *op) {
    const char *colon = strchr(text, ':');
    op->variable = colon ? find_variable(colon + 1, strlen(colon + 1)) : FD_NAME_MAP_NUMBER;
    if (op->variable) {
        char *end;
        op->arg[0] = strtoll(text, &end, 10);
        return end == colon && end != text && op->arg[0] >= 0 && op->variable != FD_NAME_MAP_N_TOK &&
               op->variable != FD_NAME_MAP_ATTN_SCALE;
    }
    return take_list(text, ':', op) && op->n_arg == 2 && op->arg[0] >= 0 && op->arg[1] > op->arg[0];
}

static bool take_part(const char *text, fd_name_map_op *op) {
    for (int i = 0; i < FD_FUSED_PART_COUNT; i++)
        if (strcmp(text, fd_fused_parts[i].name) == 0) return op->arg[0] = i, true;
    return false;
}

static bool take_heads(const char *text, fd_name_map_op *op) {
    if (!take_operand(text, '\0', op) || op->variable == FD_NAME_MAP_ATTN_SCALE) return false;
    return op->variable || (op->number >= 1 && op->number <= 65536 && op->number == floor(op->number));
}

static bool take_halves(const char *text, fd_name_map_op *op) {
    (void)op;
    return strcmp(text, "halves") == 0;
}

const fd_name_map_operation fd_name_map_operations[FD_NAME_MAP_OPERATION_COUNT] = {
    [FD_NAME_MAP_RESHAPE] = {"reshape", take_reshape},   [FD_NAME_MAP_PERMUTE] = {"permute", take_permute},
    [FD_NAME_MAP_TRANSPOSE] = {"transpose", NULL},       [FD_NAME_MAP_HEADS] = {"heads", take_heads},
    [FD_NAME_MAP_SLICE] = {"slice", take_slice},         [FD_NAME_MAP_PART] = {"part", take_part},
    [FD_NAME_MAP_SCALE] = {"scale", take_scale},         [FD_NAME_MAP_INTERLEAVE] = {"interleave", NULL},
    [FD_NAME_MAP_DEINTERLEAVE] = {"deinterleave", NULL}, [FD_NAME_MAP_ROPE_HALVES] = {"rope", take_halves},
};

/* "n_tok,n_head,-1": numbers and variables, at most one of them open. */
static bool take_shape(const char *text, fd_name_map_rule *rule) {
    int n_open = 0;
    for (rule->n_shape = 0; rule->n_shape < FD_NAME_MAP_MAX_ARGS;) {
        fd_name_map_dim *dim = &rule->shape[rule->n_shape++];
        size_t n = strcspn(text, ",");
        char *end = (char *)(uintptr_t)text + n;
        *dim = (fd_name_map_dim){.variable = find_variable(text, n)};
        if (!dim->variable) dim->number = strtoll(text, &end, 10);
        bool open = !dim->variable && dim->number == -1;
        n_open += open;
        if (n == 0 || end != text + n || dim->variable == FD_NAME_MAP_ATTN_SCALE ||
            (!dim->variable && !open && (dim->number < 1 || dim->number > INT32_MAX)))
            return false;
        if (*end == '\0') return n_open <= 1;
        text = end + 1;
    }
    return false;
}

/* "gemma2,gemma3", "!gemma2" */
static bool take_archs(const char *text, fd_name_map_rule *rule) {
    const size_t n = strlen(text);
    if (n == 0 || rule->archs || text[0] == ',' || text[n - 1] == '!' || text[n - 1] == ',' || strstr(text, ",,"))
        return false;
    return (rule->archs = strdup(text)) != NULL;
}

/* arch=, bias=no, factor=no, shape=, axis=, rows=, as= and else say which array is read, and how, before any operation. True
 * when the word is one of them. */
static bool take_reading(const char *word, fd_name_map_rule *rule, bool *ok) {
    static const char *const rows[] = {"rows=all", "rows=last", "rows=cache"};
    static const char *const words[] = {"as=file", "as=f16", "as=bf16"};
    *ok = true;
    if (strcmp(word, "else") == 0) return rule->otherwise = true;
    if (strcmp(word, "bias=no") == 0) return rule->unbiased = true;
    if (strcmp(word, "factor=no") == 0) return rule->unscaled = true;
    for (int i = 0; i < 3; i++) {
        if (strcmp(word, rows[i]) == 0) return rule->rows = (fd_name_map_rows)i, true;
        if (strcmp(word, words[i]) == 0) return rule->words = (fd_name_map_words)i, true;
    }
    if (strncmp(word, "arch=", 5) == 0) return *ok = take_archs(word + 5, rule), true;
    if (strncmp(word, "shape=", 6) == 0) return *ok = take_shape(word + 6, rule), true;
    if (strncmp(word, "axis=", 5) != 0) return false;
    char *end;
    bool first = strcmp(word + 5, "first") == 0;
    long axis = first ? 0 : strtol(word + 5, &end, 10);
    if (first)
        *ok = true;
    else
        *ok = end != word + 5 && *end == '\0' && axis < 0 && axis >= -FD_ARRAY_MAX_RANK;
    rule->axis = (int)axis;
    rule->has_axis = true;
    return true;
}

const char *fd_name_map_take_operation(const char *word, fd_name_map_rule *rule) {
    bool ok;
    if (take_reading(word, rule, &ok))
        return ok               ? NULL
               : word[1] == 'r' ? "arch lists architectures once, with commas between them:"
               : word[0] == 'a' ? "axis counts from the end (-1 to -8), or is first:"
                                : "shape has 1 to 8 dimensions: numbers, n_tok, n_head, …, at most one -1:";
    const char *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    for (int i = 0; i < FD_NAME_MAP_OPERATION_COUNT; i++) {
        const fd_name_map_operation *operation = &fd_name_map_operations[i];
        if (strlen(operation->name) != n || memcmp(operation->name, word, n) != 0) continue;
        if (rule->n_op == FD_NAME_MAP_MAX_OPS) return "more than 8 operations, at";
        fd_name_map_op *op = &rule->ops[rule->n_op++];
        *op = (fd_name_map_op){.kind = (fd_name_map_op_kind)i};
        bool fits = operation->take ? equals && operation->take(equals + 1, op) : !equals;
        return fits ? NULL : "an operation with arguments that make no sense:";
    }
    return "unknown operation (arch, shape, axis, rows, as, else, reshape, permute, transpose, heads, slice, part, "
           "scale, "
           "interleave, "
           "deinterleave, rope):";
}
