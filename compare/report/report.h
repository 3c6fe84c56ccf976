/* A verdict as text for a person, JSON for a program, JUnit XML for a CI, HTML to look at. All write to a stream the
 * caller checks. */
#ifndef FD_COMPARE_REPORT_REPORT_H
#define FD_COMPARE_REPORT_REPORT_H

#include <stdio.h>

#include "compare/verdict.h"

/* Writes an escape sequence that a terminal is to obey: `to` itself shows no text of files that way. */
typedef void (*fd_report_colour)(FILE *to, const char *escape);
/* What a first reader needs comes first, in at most twelve lines: where, what, name, where else, next step. */
void fd_report_text(FILE *to, const fd_verdict *verdict, fd_report_colour colour); /* colour NULL: none */

/* More of it (-v): a map of layers and tensors, values side by side, a table of layers, one of tokens; nothing where no op
 * was replayed. */
void fd_report_details(FILE *to, const fd_verdict *verdict, fd_report_colour colour);

/* Keys as in docs/verdicts.md; every value also as its hexadecimal bits, because JSON has no NaN. Fails when memory
 * runs out or the stream refuses. */
fd_code fd_report_json(FILE *to, const fd_verdict *verdict, fd_error *err);

/* Test cases "model", "tokens", "weights", "tensors" and "completeness". */
void fd_report_junit(FILE *to, const fd_verdict *verdict);

/* What happened in one sentence, for who does not know the tool: "The candidate has a bug in layer 3: …". */
void fd_report_sentence(const fd_verdict *verdict, char *to, size_t size);

/* A page that stands alone, without network: that sentence, the text report, and, where ops were replayed, a map of layers
 * and tensors, each with its values and errors, attention, tokens, health, explanations (page/). */
fd_code fd_report_html(FILE *to, const fd_verdict *verdict, fd_error *err);

/* The first lines of the text report without line breaks: "DIVERGED at blk.0.attn_q step 0 …". */
void fd_report_headline(const fd_verdict *verdict, char *to, size_t size);

typedef enum fd_junit_result { FD_JUNIT_PASSED, FD_JUNIT_FAILED, FD_JUNIT_ERROR } fd_junit_result;

typedef struct fd_junit_case {
    char name[128];
    fd_junit_result result;
    char message[1024]; /* "" when it passed */
} fd_junit_case;

/* One <testsuite>. Characters that base/text.h does not show come out as U+FFFD. */
void fd_junit_write(FILE *to, const char *suite, const fd_junit_case *cases, int32_t n_case);

#endif
