/* Bugs for ggml's CPU backend. build.py puts this file in front of ggml_compute_forward (ggml-cpu.c) and calls
 * fd_compute_with_bug at its head. The environment variable FD_BUG switches one bug on:
 *
 *     NAME             in every layer, in every forward call
 *     NAME@2           in layer 2 alone
 *     NAME+decode      in forward calls of one token alone; NAME@2+decode, NAME+prefill
 *
 * A bug is a row of table.h: the op and the place in the model where it sits, and what computes the node
 * instead. Most of them give ggml's own kernel other parameters or other inputs, as the mistake of an engine would; the
 * others are plain loops. They take one thread for granted.
 *
 * A place is the part of the weight's name ("attn_q", "ffn_norm", "attn_q.bias", "logits"), or what llama.cpp calls the
 * node ("kq", "kqv", "kq_soft_max", "ffn_swiglu", "ffn_inp", "l_out", "q" and "k" of RoPE, "cache_k"). */
#include <ctype.h>

#include "table.h"

static bool fd_starts(const char *s, const char *with) {
    return strncmp(s, with, strlen(with)) == 0;
}

static int fd_number_after(const char *s, const char *mark) {
    const char *at = strstr(s, mark);
    return at && isdigit((unsigned char)at[strlen(mark)]) ? atoi(at + strlen(mark)) : -1;
}

/* "blk.2.attn_q.weight": attn_q; "blk.2.attn_q.bias": attn_q.bias. */
static void fd_part_of(const char *weight, char *place, size_t size) {
    const char *part = fd_starts(weight, "blk.") ? strchr(weight + 4, '.') + 1 : weight;
    snprintf(place, size, "%s", part);
    char *kind = strstr(place, ".weight");
    if (kind) *kind = 0;
}

static bool fd_is_weight(const fd_tensor *t) {
    return t && t->op == GGML_OP_NONE && (strstr(t->name, ".weight") || strstr(t->name, ".bias"));
}

static void fd_place(const fd_tensor *t, char *place, size_t size) {
    const fd_tensor *w = fd_is_weight(t->src[0]) ? t->src[0] : fd_is_weight(t->src[1]) ? t->src[1] : NULL;
    fd_layer = w                              ? fd_number_after(w->name, "blk.")
               : fd_starts(t->name, "cache_") ? fd_number_after(t->name, "_l")
                                              : fd_number_after(t->name, "-");
    snprintf(place, size, "%s", t->name);
    place[strcspn(place, "-")] = 0;
    if (w) fd_part_of(w->name, place, size);
    if (t->op == GGML_OP_MUL_MAT && w && fd_layer < 0) snprintf(place, size, "logits");
    if (t->op == GGML_OP_RMS_NORM)
        snprintf(place, size,
                 fd_layer < 0                            ? "output_norm"
                 : fd_starts(t->src[0]->name, "ffn_inp") ? "ffn_norm"
                                                         : "attn_norm");
    if (t->op == GGML_OP_ROPE) snprintf(place, size, fd_starts(t->name, "Q") ? "q" : "k");
    if (t->op == GGML_OP_SET_ROWS) place[7] = 0; /* cache_k, cache_v */
}

static bool fd_has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    for (const char *at = words; (at = strstr(at, word)); at += n)
        if ((at == words || at[-1] == ' ') && (at[n] == 0 || at[n] == ' ')) return true;
    return false;
}

/* Computes the node with the bug that FD_BUG names, if it sits there. */
static bool fd_compute_with_bug(fd_params *params, fd_tensor *tensor) {
    if (tensor->name[0] == 0) return false;
    if (tensor->op == GGML_OP_GET_ROWS && strcmp(tensor->src[0]->name, "token_embd.weight") == 0)
        fd_n_token = tensor->ne[1];
    if (tensor->op == GGML_OP_ROPE) fd_first_position = *(const int32_t *)tensor->src[1]->data;
    if (tensor->op == GGML_OP_MUL_MAT && fd_starts(tensor->name, "kq"))
        fd_read_at[fd_starts(tensor->name, "kqv")][fd_number_after(tensor->name, "-")] = tensor->src[0]->data;
    const char *spec = getenv("FD_BUG");
    if (!spec || !*spec) return false;
    size_t n = strcspn(spec, "@+");
    int layer = fd_number_after(spec, "@");
    if (strstr(spec, "+decode") && !(fd_n_token == 1)) return false;
    if (strstr(spec, "+prefill") && fd_n_token == 1) return false;
    char place[GGML_MAX_NAME];
    fd_place(tensor, place, sizeof place);
    if (layer >= 0 && fd_layer != layer) return false;
    for (size_t i = 0; i < sizeof fd_bugs / sizeof *fd_bugs; i++) {
        const fd_bug *bug = &fd_bugs[i];
        if (bug->op != tensor->op || strlen(bug->name) != n || strncmp(bug->name, spec, n) != 0 ||
            !fd_has_word(bug->places, place))
            continue;
        fd_tensor copy = *tensor;
        bug->compute(params, &copy, bug->a);
        return true;
    }
    return false;
}
