/* What lines of the text report are made of. */
#ifndef FD_COMPARE_REPORT_LINE_H
#define FD_COMPARE_REPORT_LINE_H

#include <stdint.h>
#include <stdio.h>

#include "base/status.h"

/* "  head        text"; control characters of the text come out as "?". */
void fd_line(FILE *to, const char *head, const char *format, ...) FD_PRINTF(3, 4);

/* Names and paths come from files: control characters must not reach a terminal. */
void fd_put_clean(FILE *to, const char *text);

const char *fd_plural(int64_t n); /* "s", or "" for 1 */

/* A value in as few digits as identify it: 9 when it is a binary32, else 17; "nan", "inf", "-inf". */
void fd_value_text(double value, char *to, size_t size);

#endif
