#include <stdio.h>
#include <string.h>

#include "compare/diagnose/overflow.h"

const char *fd_overflow_kind_name(fd_overflow_kind kind) {
    static const char *const names[] = {"none",         "unknown",        "input",       "block sum", "unscaled score",
                                        "square",       "sum of squares", "exponential", "result",    "partial sum",
                                        "norm of zero", "masked",         "no key"};
    return names[kind];
}

/* What it is that reaches so far; of an input, and by itself. */
static void subject(const fd_overflow *o, char to[160]) {
    static const char *const words[] = {[FD_OVERFLOW_INPUT] = "its input %s",
                                        [FD_OVERFLOW_BLOCK_SUM] = "the sum of a block of 32 of its input %s",
                                        [FD_OVERFLOW_UNSCALED] = "a score, before it is scaled,",
                                        [FD_OVERFLOW_SQUARE] = "the square of an element of %s",
                                        [FD_OVERFLOW_SQUARES] = "the sum of the squares of %s",
                                        [FD_OVERFLOW_EXPONENTIAL] = "exp of an element of %s",
                                        [FD_OVERFLOW_RESULT] = "its result",
                                        [FD_OVERFLOW_PARTIAL_SUM] = "a partial sum over %s"};
    const char *word = words[o->kind], *at = word ? strstr(word, "%s") : NULL;
    snprintf(to, 160, "%.*s%s%s", at ? (int)(at - word) : 159, word ? word : "", at ? o->input : "", at ? at + 2 : "");
}

const char *fd_overflow_text(const fd_overflow *o, char to[FD_OVERFLOW_TEXT_SIZE]) {
    char what[160];
    enum { SIZE = FD_OVERFLOW_TEXT_SIZE };
    to[0] = '\0';
    switch (o->kind) {
    case FD_OVERFLOW_NONE: break;
    case FD_OVERFLOW_UNKNOWN:
        snprintf(
            to, SIZE,
            "%s: cause unknown: inputs reach %.6g and the result %.6g, and nothing on the way leaves a type's range "
            "in these rows alone. Look for a division by 0, or memory that nobody wrote",
            o->node, o->reaches, o->gives);
        break;
    case FD_OVERFLOW_NORM_OF_ZERO:
        snprintf(to, SIZE, "%s: the mean square of %s is %.3g at position %d; without an eps %s has 0 for it, and 1/0",
                 o->node, o->input, o->reaches, o->pos, o->type);
        break;
    case FD_OVERFLOW_MASKED:
        snprintf(to, SIZE, "%s: -Inf is a mask, no overflow: it hides %.0f of %.0f scores at position %d%s", o->node,
                 o->reaches, o->gives, o->pos,
                 o->reaches >= o->gives ? "; softmax of a row that sees no key is 0/0" : "");
        break;
    case FD_OVERFLOW_NO_KEY:
        snprintf(
            to, SIZE,
            "%s: all weights of a head are NaN at position %d though its scores are finite: as of a row whose keys are "
            "all masked, 0/0",
            o->node, o->pos);
        break;
    default:
        subject(o, what);
        snprintf(to, SIZE, "%s: %s reaches %.6g at position %d; %s ends at %.6g (so in %d of %d rows, and only these)",
                 o->node, what, o->reaches, o->pos, o->type, o->limit, o->n_row_not_finite, o->n_row);
    }
    return to;
}
