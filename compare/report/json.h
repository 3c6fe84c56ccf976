/* The parts of the JSON report that a model adds (json_model.c, json_measures.c); NULL when memory ran out. */
#ifndef FD_COMPARE_REPORT_JSON_H
#define FD_COMPARE_REPORT_JSON_H

#include <jansson.h>

#include "compare/verdict.h"

json_t *fd_json_weights(const fd_verdict_weights *weights);
json_t *fd_json_replay(const fd_verdict_replay *replay);
json_t *fd_json_flip(const fd_verdict_flip *flip);
json_t *fd_json_explanation(const fd_explanation *explanation);
json_t *fd_json_measures(const fd_verdict *verdict); /* of a verdict with replay */
json_t *fd_json_causes(const fd_causes *causes);     /* the first cause, then the others */

#endif
