/* What the JSON report is built of. Every function returns NULL when memory ran out; json_pack and the functions
 * here hand that on. */
#ifndef FD_COMPARE_REPORT_JSON_BUILD_H
#define FD_COMPARE_REPORT_JSON_BUILD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define FD_JSON_INT(n) ((json_int_t)(n))

/* NULL is null. A name from a file need not be UTF-8: then "?" for what is not ASCII. */
json_t *fd_json_text(const char *text);

/* {"value": 0.5, "text": "0.5", "bits": "0x3f000000"}; value is null for NaN and Inf. */
json_t *fd_json_number(double x);

json_t *fd_json_number_if(bool known, double x); /* null when it is not known */
json_t *fd_json_int_if(bool known, int64_t n);

/* Each takes over both and returns the first with the second in it. */
json_t *fd_json_append(json_t *list, json_t *value);
json_t *fd_json_join(json_t *object, json_t *more);

/* Writes it, indented, with a line feed. Characters that base/text.h does not show are escaped, as JSON may: a terminal
 * gets none of them. False: out of memory, or the stream refused. */
bool fd_json_write(FILE *to, const json_t *root);

#endif
