/* A class that nobody stated has room for bugs. Where one bug in a class with tight bounds gives the recorded values, no
 * rounding made them, and a wider class that has room for the error is refuted. */
#ifndef FD_COMPARE_CLASS_BY_BUG_H
#define FD_COMPARE_CLASS_BY_BUG_H

#include "compare/attribute/attribution.h"
#include "compare/diagnose/diagnose.h"
#include "compare/infer/class_evidence.h"

/* `options`: as `judged` was in the inferred class, options->numerics. That becomes the first tight class in which a bug
 * explains the first finding and half of all of them, and *evidence says so; else both stay. */
fd_code fd_refute_class_by_bug(fd_attribution_options *options, const fd_attribution *judged,
                               fd_class_evidence *evidence, fd_error *err);

/* Says so in *evidence, of the inferred class: in another a bug gives the values of `node`. */
void fd_class_refuted_by_bug(const fd_numerics_class *class_, const char *node, fd_class_evidence *evidence);

/* Of a finding that has no name, at a product whose inputs were recorded, in a class that has room for int8 blocks: the bug that
 * gives its values to their last bits where the blocks are repeated, if there is one. */
fd_code fd_explain_by_blocks(const fd_diagnose_options *ask, fd_explanation *explanation, fd_error *err);

#endif
