#include <stdio.h>
#include <string.h>

#include "compare/report/line.h"
#include "compare/report/remarks.h"
#include "compare/report/report.h"

static void say_divergence(const fd_verdict *v, char *to, size_t size) {
    const fd_divergence *d = &v->divergence;
    const fd_explanation *e = &v->diagnosis.explanation;
    const char *who = v->replay.of_reference ? "reference" : "candidate";
    char place[32] = "";
    if (d->layer >= 0) snprintf(place, sizeof place, " in layer %d", d->layer);
    if (v->weights.n_differ && v->weights.named)
        snprintf(to, size, "The %s loaded its weights wrong: %s.", v->weights.of_reference ? "reference" : "candidate",
                 v->weights.summary);
    else if (v->weights.n_differ)
        snprintf(to, size, "The %s computes with a weight that is not the model's: %s.",
                 v->weights.of_reference ? "reference" : "candidate", v->weights.name);
    else if (d->kind == FD_DIVERGED_TOKENS)
        snprintf(to, size, "The two runs were fed different tokens from position %d on.", d->pos);
    else if (d->kind == FD_DIVERGED_SHAPE)
        snprintf(to, size, "%s has another shape in the candidate: %s for %s.", d->node, d->cand_shape, d->ref_shape);
    else if (v->diagnosis.done && e->named)
        snprintf(to, size, "The %s has a bug%s: %s.", who, place, e->remaining[0].summary);
    else if (v->diagnosis.done)
        snprintf(to, size, "The %s has a bug%s: %s does not follow from its inputs, and no one known bug explains it.",
                 who, place, d->node);
    else
        snprintf(to, size, "The first difference is at %s. Whether it is rounding or a bug, the model tells.", d->node);
}

void fd_report_sentence(const fd_verdict *v, char *to, size_t size) {
    char reason[FD_REMARK_SIZE];
    switch (v->status) {
    case FD_DIVERGED: say_divergence(v, to, size); break;
    case FD_INCOMPLETE: snprintf(to, size, "Not decided: %s.", fd_reason_text(v, 0, reason)); break;
    case FD_CHECK_DUMP:
        snprintf(to, size, "The engine is sound, but %s was not recorded as it was used.", v->dump.kinds[0].node);
        break;
    case FD_NOISE:
        snprintf(to, size, "No bug: the two differ by no more than %s rounding explains.", v->replay.numerics);
        break;
    case FD_IDENTICAL:
        snprintf(to, size, "No bug: all %lld tensor%s agree in every bit.", (long long)v->counts.n_compared,
                 fd_plural(v->counts.n_compared));
        break;
    }
}
