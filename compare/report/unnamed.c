#include "compare/report/unnamed.h"

#include <stdio.h>
#include <string.h>

#define SAY(...) snprintf(to, FD_UNNAMED_SIZE, __VA_ARGS__)

const char *fd_unnamed_text(const fd_explanation *e, char to[FD_UNNAMED_SIZE]) {
    to[0] = '\0';
    switch (e->why) {
    case FD_NAMED: return to;
    case FD_UNNAMED_OP_FITS: SAY("the op as it should be is within 10 τ of the candidate"); break;
    case FD_UNNAMED_NONE_FITS:
        SAY("none of %d explanations gives the candidate's values%s", e->n_tried,
            e->n_remaining ? "; the nearest are within 10 τ" : "");
        break;
    case FD_UNNAMED_SEVERAL_FIT: SAY("%d explanations are within 10 τ and differ from each other", e->n_apart); break;
    case FD_UNNAMED_LITTLE_EVIDENCE:
        SAY("fewer than %d finite elements tell the explanation from the op as it should be", FD_MIN_EVIDENCE);
        break;
    case FD_UNNAMED_FEW_ROWS:
        SAY("what explains the first rows that depart does not explain position %d", e->first_pos);
        break;
    case FD_UNNAMED_INPUT_UNRECORDED: SAY("an input of %s was not recorded", e->node); return to;
    case FD_UNNAMED_ROWS_UNRECORDED:
        SAY("%s was not recorded at every position from %d to %d", e->node, e->first_pos, e->last_pos);
        return to;
    }
    size_t at = strlen(to);
    if (e->n_without_effect)
        snprintf(to + at, FD_UNNAMED_SIZE - at, "; %d change nothing on these inputs", e->n_without_effect);
    return to;
}

const char *fd_tells_apart_text(const fd_explanation *e, char to[FD_UNNAMED_SIZE]) {
    const char *a = e->n_remaining > 1 ? e->remaining[0].name : "";
    const char *b = e->n_remaining > 1 ? e->remaining[1].name : "";
    to[0] = '\0';
    switch (e->tells_apart) {
    case FD_TELLS_NOTHING: break;
    case FD_TELLS_SECOND_POSITION:
        SAY("a second position: at position 0 RoPE is the identity and a row attends to itself alone");
        break;
    case FD_TELLS_NODE: SAY("%s: %s and %s differ there", e->other, a, b); break;
    case FD_TELLS_MORE_POSITIONS: SAY("more positions: %s and %s differ in nothing else", a, b); break;
    case FD_TELLS_LAYER: SAY("the other tensors of layer %d: %d explanations read them", e->layer, e->n_untried); break;
    case FD_TELLS_SPAN: SAY("%s … %s, recorded", e->other, e->node); break;
    }
    return to;
}

const char *fd_weights_match_text(const fd_verdict_weights *w, char to[FD_UNNAMED_SIZE]) {
    const long long n = w->n_match, by = w->match_late < 0 ? -w->match_late : w->match_late;
    to[0] = '\0';
    switch (w->match) {
    case FD_MATCH_NONE: break;
    case FD_MATCH_OTHER: SAY("all %lld rows are those of %s", n, w->match_name); break;
    case FD_MATCH_SHIFTED:
        SAY("%lld rows are its own, %lld row%s %s", n, by, by == 1 ? "" : "s", w->match_late > 0 ? "late" : "early");
        break;
    case FD_MATCH_REORDERED: SAY("%lld rows are its own in another order", n); break;
    }
    return to;
}

const char *fd_weights_unnamed_text(const fd_verdict_weights *w, char to[FD_UNNAMED_SIZE]) {
    to[0] = '\0';
    if (w->n_differ && !w->against_model)
        SAY("the model's bytes are needed to try explanations: give it with --model");
    else if (w->n_differ && !w->named)
        SAY("no explanation of the table has the hashes of %.100s", w->name);
    return to;
}
