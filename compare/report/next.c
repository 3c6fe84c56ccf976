#include "compare/report/next.h"

#include <stdio.h>
#include <string.h>

#include "dumpers/store/place.h"

/* Appends `text` as one word of a shell: as it is where nothing in it means anything to a shell, else quoted. */
static void add_word(char *to, size_t size, const char *text) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-+:,=@%";
    size_t at = strlen(to);
    bool quote = !text[0] || text[strspn(text, plain)] != '\0';
    if (quote && at + 1 < size) to[at++] = '\'';
    for (; *text && at + 5 < size; text++) {
        bool is_quote = *text == '\'';
        memcpy(to + at, is_quote ? "'\\''" : text, is_quote ? 4 : 1);
        at += is_quote ? 4 : 1;
    }
    if (quote && at + 1 < size) to[at++] = '\'';
    to[at] = '\0';
}

/* The divergence's head, or a flat tensor's part that is this head, or all of a position, in this trace's own shape. */
static void slice_text(const fd_divergence *d, const fd_trace_node *node, char *to, size_t size) {
    int64_t width = d->n_dim == 2 ? d->dims[1] : 0, head = width > 0 ? d->diff.first.index / width : 0;
    if (node->source[0] || width <= 0 || !d->has_values || d->diff.first.index < 0 || node->over_kv != d->over_kv)
        snprintf(to, size, "[%d]", d->pos);
    else if (node->n_dim == 2)
        snprintf(to, size, "[%d, %lld, :]", d->pos, (long long)head);
    else if (node->n_dim == 1)
        snprintf(to, size, "[%d, %lld:%lld]", d->pos, (long long)(head * width), (long long)((head + 1) * width));
    else
        snprintf(to, size, "[%d]", d->pos);
}

/* The `firstdiff inspect` that shows the divergence as `trace` has it: under its own name (`source` of a mapped
 * trace) and in its own shape. "" when the path is too long for it. */
static void suggest_inspect(fd_verdict *verdict, const fd_trace *trace) {
    const fd_divergence *d = &verdict->divergence;
    int32_t at = fd_trace_find(trace, d->node);
    char tensor[192], slice[64];
    verdict->next[0] = '\0';
    if (strlen(fd_trace_path(trace)) > sizeof verdict->next / 4) return; /* half a command is none */
    snprintf(verdict->next, sizeof verdict->next, "firstdiff inspect ");
    add_word(verdict->next, sizeof verdict->next, fd_trace_path(trace));
    if (at < 0) return;
    const fd_trace_node *node = fd_trace_node_at(trace, at);
    slice_text(d, node, slice, sizeof slice);
    bool values = d->kind == FD_DIVERGED_VALUES && fd_trace_holds(trace, at, d->pos);
    snprintf(tensor, sizeof tensor, "%s%s", node->source[0] ? node->source : node->name, values ? slice : "");
    strcat(verdict->next, " ");
    add_word(verdict->next, sizeof verdict->next, tensor);
}

static bool is_own(const fd_verdict_side *side) {
    return strncmp(side->producer, "firstdiff ", 10) == 0 && strcmp(side->producer, "firstdiff import") != 0;
}

/* Traces in which no name is on both sides: one of them has an engine's own. */
static bool shares_no_name(const fd_verdict *v) {
    bool of_ref = false, of_cand = false;
    for (int32_t i = 0; i < v->n_missing; i++) {
        of_ref |= v->missing[i].why == FD_ONLY_IN_REFERENCE;
        of_cand |= v->missing[i].why == FD_ONLY_IN_CANDIDATE;
    }
    return of_ref && of_cand && v->counts.n_compared == 0;
}

void fd_next_of_bits(fd_verdict *v, const fd_trace *departs) {
    const fd_divergence *d = &v->divergence;
    if (d->kind == FD_NO_DIVERGENCE) {
        if (!shares_no_name(v) || strlen(fd_trace_path(departs)) > sizeof v->next / 4) return;
        snprintf(v->next, sizeof v->next, "firstdiff check MODEL.gguf ");
        add_word(v->next, sizeof v->next, fd_trace_path(departs));
        return;
    }
    if (d->kind == FD_DIVERGED_VALUES && !d->has_values)
        snprintf(v->next, sizeof v->next,
                 "firstdiff run MODEL.gguf … -o FULL.h5 --level full --tensors '%s' --steps %d-%d", d->node, d->step,
                 d->step);
    else
        suggest_inspect(v, departs);
}

/* The class that the tensors' values show where another was stated; NULL: they do not, or none was. */
static const char *class_of_values(const fd_verdict *v) {
    for (int32_t i = 0; i < v->notes.n && i < FD_MAX_REMARKS; i++)
        if (v->notes.items[i].kind == FD_NOTE_TENSORS_OF_16_BITS) return v->notes.items[i].other;
    return NULL;
}

/* A person who never saw the GGUF's names finds the place in his engine by his own. */
static void say_own_name(fd_verdict *v, const fd_trace *departs) {
    const int32_t node = fd_trace_find(departs, v->divergence.node);
    const fd_trace_node *saved = node < 0 ? NULL : fd_trace_node_at(departs, node);
    v->saved_as[0] = '\0';
    if (saved && strcmp(saved->saved_as, saved->name) != 0)
        snprintf(v->saved_as, sizeof v->saved_as, "%s", saved->saved_as);
}

void fd_next_of_replay(fd_verdict *v, const fd_trace *departs) {
    say_own_name(v, departs);
    const char *role = v->replay.of_reference ? "reference" : "candidate", *shown = class_of_values(v);
    if (shown && !v->replay.of_reference)
        snprintf(v->next, sizeof v->next,
                 "the same with --candidate %s, if your engine keeps its tensors in 16 bits: all values have so many",
                 shown);
    else if (v->replay.tensors[0] && !is_own(v->replay.of_reference ? &v->ref : &v->cand))
        snprintf(v->next, sizeof v->next, "record '%s' in the %s's engine too, then compare again", v->replay.tensors,
                 role);
    else if (v->replay.tensors[0])
        snprintf(v->next, sizeof v->next, "firstdiff run … -o NARROW.h5 --tensors '%s' of the %s, then compare again",
                 v->replay.tensors, role);
    else
        suggest_inspect(v, departs);
}
