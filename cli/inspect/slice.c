#include "cli/inspect/slice.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *skip_blanks(const char *p) {
    return p + strspn(p, " \t");
}

/* An optional integer at *p. */
static bool take_integer(const char **p, int64_t *value, bool *present) {
    char *end;
    *p = skip_blanks(*p);
    *present = false;
    if (!strchr("+-0123456789", **p) || !**p) return true;
    errno = 0;
    *value = strtoll(*p, &end, 10);
    if (end == *p || errno) return false;
    *present = true;
    *p = skip_blanks(end);
    return true;
}

static bool parse_axis(const char **p, fd_slice_axis *axis) {
    bool has_step = false;
    *axis = (fd_slice_axis){.step = 1};
    if (!take_integer(p, &axis->start, &axis->has_start)) return false;
    if (**p != ':') {
        axis->is_index = true;
        return axis->has_start;
    }
    ++*p;
    if (!take_integer(p, &axis->stop, &axis->has_stop)) return false;
    if (**p != ':') return true;
    ++*p;
    if (!take_integer(p, &axis->step, &has_step)) return false;
    if (!has_step) axis->step = 1;
    return axis->step >= 1;
}

fd_code fd_slice_parse(const char *text, fd_slice *out, fd_error *err) {
    *out = (fd_slice){0};
    if (!text || !*text) return FD_OK;
    const char *p = text;
    if (*p++ != '[') return fd_fail(err, FD_ERR_INPUT, "slice \"%s\": expected [", text);
    if (!strchr(p, ']')) return fd_fail(err, FD_ERR_INPUT, "slice \"%s\": no closing ]", text);
    p = skip_blanks(p);
    while (*p != ']') {
        if (out->n_axis == FD_SLICE_MAX_AXIS)
            return fd_fail(err, FD_ERR_INPUT, "slice \"%s\": more than %d indices", text, FD_SLICE_MAX_AXIS);
        const char *at = p;
        if (!parse_axis(&p, &out->axes[out->n_axis++]) || (*p != ',' && *p != ']'))
            return fd_fail(err, FD_ERR_INPUT, "slice \"%s\": \"%.*s\" is not an index, start:stop or start:stop:step",
                           text, (int)strcspn(at, ",]"), at);
        if (*p == ',') p = skip_blanks(p + 1);
    }
    if (p[1]) return fd_fail(err, FD_ERR_INPUT, "slice \"%s\": \"%s\" after the ]", text, p + 1);
    return FD_OK;
}

static int64_t clamp(int64_t i, int64_t length) {
    return i < 0 ? 0 : i > length ? length : i;
}

bool fd_slice_resolve(const fd_slice *slice, int32_t i, int64_t length, fd_range *out) {
    fd_slice_axis axis = i < slice->n_axis ? slice->axes[i] : (fd_slice_axis){.step = 1};
    int64_t start = axis.start < 0 ? axis.start + length : axis.start;
    int64_t stop = axis.stop < 0 ? axis.stop + length : axis.stop;
    if (axis.is_index) {
        *out = (fd_range){start, 1, 1};
        return start >= 0 && start < length;
    }
    start = axis.has_start ? clamp(start, length) : 0;
    stop = axis.has_stop ? clamp(stop, length) : length;
    *out = (fd_range){start, stop > start ? (stop - start - 1) / axis.step + 1 : 0, axis.step};
    return true;
}
