/* The JSON report in two parts: report_json.c has the frame and what two traces say in bits, report_json_judged.c what a
 * model adds to that. */
#ifndef FD_COMPARE_REPORT_JSON_H
#define FD_COMPARE_REPORT_JSON_H

#include <jansson.h>

#include "compare/verdict.h"

/* ---- report_json.c ---- */
/* Jansson takes over a value also when it is NULL and fails; one failure anywhere fails the report. */
typedef struct fd_json_builder {
    bool failed;
} fd_json_builder;

json_t *
fd_json_text(const char *text); /* NULL is null; a name from a file need not be UTF-8: then "?" for what is not ASCII */
json_t *fd_json_number(fd_json_builder *b, double x); /* {"value": 0.5, "text": "0.5", "bits": "0x3f000000"}; value is
                                                         null for NaN and Inf */
void fd_json_set(fd_json_builder *b, json_t *object, const char *key, json_t *value);
void fd_json_set_text(fd_json_builder *b, json_t *object, const char *key, const char *text);
void fd_json_set_int(fd_json_builder *b, json_t *object, const char *key, int64_t n);
void fd_json_append(fd_json_builder *b, json_t *list, json_t *value);

/* ---- report_json_judged.c ---- */
json_t *fd_json_weights(fd_json_builder *b, const fd_verdict_weights *w);
json_t *fd_json_replay(fd_json_builder *b, const fd_verdict_replay *p);
json_t *fd_json_flip(fd_json_builder *b, const fd_verdict_flip *c);
json_t *fd_json_explanation(fd_json_builder *b, const fd_explanation *e);
json_t *fd_json_causes(fd_json_builder *b, const fd_causes *r); /* the first cause, then the others */

#endif
