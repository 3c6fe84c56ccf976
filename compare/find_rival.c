#include "compare/find_rival.h"

#include "compare/attribute/rival.h"
#include "compare/diagnose/suspects.h"

/* Bounds. */
#define MUCH_BEYOND 2.0
/* A share of the difference from the reference: a few values that a class rounds to steps of nearly their own size, and another
 * does not. */
#define LITTLE_INTRODUCED 1e-4

/* Of an undecided class, where what departs is what another class does in its products. */
static fd_code departs_by_class(fd_comparison *c, const fd_class_evidence *evidence, const fd_attribution *of,
                                bool *yes, fd_error *err) {
    fd_explanation e = {0};
    *yes = false;
    if (!evidence->undecided) return FD_OK;
    const fd_diagnose_options ask = fd_comparison_question(c, &of->first, of, FD_CANDIDATE);
    FD_TRY(fd_comparison_explain(c, &ask, &e, err));
    *yes = e.named && fd_explains_by_rounding(&e);
    return FD_OK;
}

fd_code fd_find_rival(fd_comparison *c, const fd_class_evidence *evidence, const fd_attribution *of,
                      const fd_numerics_class **rival, fd_error *err) {
    const fd_attribution_options how = fd_comparison_options(c, FD_CANDIDATE);
    const fd_numerics_class *coarser = fd_numerics_class_find("f16");
    const bool little = of->first.has_reference && of->first.introduced < LITTLE_INTRODUCED;
    const bool near = !(of->first.z > MUCH_BEYOND) || little; /* by so little the class may be a bit too strict */
    bool yes = false;
    *rival = NULL;
    if (!evidence->outside && !near) return FD_OK;
    for (int32_t i = 0; i < evidence->n_rival && !yes; i++) {
        FD_TRY(fd_rival_explains(&how, &of->first, evidence->rivals[i], &yes, err));
        if (yes) *rival = evidence->rivals[i];
    }
    if (yes) return FD_OK;
    bool by_class = (near && evidence->one_tensor) || little;
    if (near && !by_class) FD_TRY(departs_by_class(c, evidence, of, &by_class, err));
    if (!by_class) return FD_OK;
    FD_TRY(fd_rival_explains(&how, &of->first, coarser, &yes, err)); /* nothing refutes it then */
    if (yes) *rival = coarser;
    return FD_OK;
}
