#include "compare/report/line.h"

#include <math.h>
#include <stdarg.h>

#include "base/text.h"

void fd_value_text(double value, char *to, size_t size) {
    if (isnan(value))
        snprintf(to, size, "nan"); /* printf would add a sign that means nothing */
    else
        snprintf(to, size, (double)(float)value == value ? "%.9g" : "%.17g", value);
}

const char *fd_plural(int64_t n) {
    return n == 1 ? "" : "s";
}

void fd_put_clean(FILE *to, const char *text) {
    char line[4096];
    fd_text_one_line(text, line, sizeof line);
    fputs(line, to);
}

void fd_line(FILE *to, const char *head, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(to, "  %-11s ", head);
    fd_put_clean(to, text);
    fputc('\n', to);
}
