/* Engines of 16-bit tensors whose attention recorded neither scores nor weights: a fused kernel rounds neither, another rounds both, and the
 * second class, the wider one, is inferred where the first does not fit. A bug of attention is a reason for that, too. */
#ifndef FD_COMPARE_CLASS_FUSED_CLASS_H
#define FD_COMPARE_CLASS_FUSED_CLASS_H

#include "compare/diagnose/diagnose.h"
#include "compare/infer/class_evidence.h"

/* `options`: as `judged` was in the inferred class, options->numerics. That becomes the same class with fused attention where one bug in it
 * explains the first finding and half of all of them, or where what departs in the inferred one, in half of the layers or more, is in all
 * of them what 8 bits of K and V leave. */
fd_code fd_refute_unfused_class(fd_attribution_options *options, const fd_attribution *judged,
                                fd_class_evidence *evidence, fd_error *err);

/* Fused attention rounds less inside. Where its class, inferred from a sample, blames a step that the same class without it gives, a
 * bug of later steps was mistaken for one of all. */
fd_code fd_unfuse_class(fd_attribution_options *how, const fd_attribution *of, fd_error *err);

#endif
