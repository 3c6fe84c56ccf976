/* Which class of numerics a trace was computed in: what it says, or, where it says nothing, what its values show. */
#ifndef FD_COMPARE_INFER_INFER_H
#define FD_COMPARE_INFER_INFER_H

#include "compare/attribute/attribution.h"
#include "compare/infer/class_evidence.h"

/* How the candidate's class is known. */
typedef enum fd_class_source { FD_CLASS_GIVEN, FD_CLASS_RECORDED, FD_CLASS_INFERRED } fd_class_source;
const char *fd_class_source_name(fd_class_source source); /* "given", "recorded", "inferred" */

/* What the trace says its numerics are; NULL when it does not say, or nothing this build knows. */
const fd_numerics_class *fd_class_of_trace(const fd_trace *trace);

/* Of the classes that the trace does not refute (evidence.h), the strictest that leaves hardly more of the sampled
 * nodes beyond their bounds than the one that leaves fewest: one more in 50. A gross bug is beyond in every class
 * and so decides nothing. Of a trace in 16 bits, the strictest that fits and rounds its results to as few.
 * `numerics` of the options is ignored. */
fd_code fd_infer_class(const fd_attribution_options *options, const fd_numerics_class **out,
                       fd_class_evidence *evidence, fd_error *err);

/* People say bf16 of an engine whose tensors are bfloat16, too, as the class `bf16` does not: *out is hf-bf16 or hf-bf16-fa where
 * all values of the trace have that form, hf-f16 and hf-f16-fa likewise for f16; else `given`. */
fd_code fd_class_of_16_bit_values(const fd_attribution_options *options, const fd_numerics_class *given,
                                  const fd_numerics_class **out, fd_error *err);

#endif
