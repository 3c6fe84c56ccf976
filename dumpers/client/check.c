#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "dumpers/client/tracer.h"

size_t fd_tracer_bytes_of(fd_tracer_dtype dtype) {
    switch (dtype) {
    case FD_TRACER_F32:
    case FD_TRACER_I32: return 4;
    case FD_TRACER_F64: return 8;
    case FD_TRACER_F16:
    case FD_TRACER_BF16: return 2;
    case FD_TRACER_I8: return 1;
    }
    return 0;
}

/* Bytes of the UTF-8 sequence at s; 0 when it is none (RFC 3629: no surrogates, nothing overlong, up to U+10FFFF). */
static int sequence(const unsigned char *s) {
    if (s[0] < 0x80) return 1;
    int n = s[0] >= 0xc2 && s[0] <= 0xdf ? 2 : s[0] >= 0xe0 && s[0] <= 0xef ? 3 : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4 : 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0; /* the NUL at the end is none either */
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) ||
        (s[0] == 0xf4 && s[1] > 0x8f))
        return 0;
    return n;
}

fd_code fd_tracer_check_name(const char *what, const char *name, size_t most, fd_error *err) {
    if (!name || !name[0]) return fd_fail(err, FD_ERR_INPUT, "%s without a name", what);
    size_t n = strnlen(name, most + 1);
    if (n > most) return fd_fail(err, FD_ERR_INPUT, "%s %.40s…: a name of more than %zu bytes", what, name, most);
    for (size_t i = 0; i < n;) {
        int bytes = sequence((const unsigned char *)name + i);
        if (bytes == 0) return fd_fail(err, FD_ERR_INPUT, "%s name: byte %zu of it is no UTF-8", what, i);
        if (name[i] == '/' || (unsigned char)name[i] < 0x20 || name[i] == 0x7f)
            return fd_fail(err, FD_ERR_INPUT, "%s name: byte %zu of it is '/' or a control character", what, i);
        i += (size_t)bytes;
    }
    if (name[0] == '.' || strstr(name, ".."))
        return fd_fail(err, FD_ERR_INPUT, "%s %s: a name may not begin with '.' or hold '..'", what, name);
    return FD_OK;
}

static const char *list(int n, const int64_t *values, char out[160]) {
    size_t at = (size_t)snprintf(out, 160, "[");
    for (int i = 0; i < n && at < 160; i++)
        at += (size_t)snprintf(out + at, 160 - at, "%s%" PRId64, i ? ", " : "", values[i]);
    if (at < 159) strcpy(out + at, "]");
    return out;
}

/* No two elements share a place when, from the smallest stride to the largest, each is greater than what the smaller
 * ones reach. The stride of a dimension of 1 says nothing. */
static fd_code check_strides(const fd_tracer_tensor *t, int64_t stride[], fd_error *err) {
    char text[160], shape[160];
    bool given = false;
    for (int i = 0; i < t->n_dim; i++) given |= t->stride[i] != 0;
    int64_t next = 1;
    for (int i = t->n_dim - 1; i >= 0; i--) {
        stride[i] = given ? t->stride[i] : next;
        next *= t->shape[i];
    }
    bool used[FD_TRACER_MAX_DIM] = {false};
    int64_t reach = 0;
    for (int turn = 0; turn < t->n_dim; turn++) {
        int at = -1;
        for (int i = 0; i < t->n_dim; i++)
            if (!used[i] && (at < 0 || stride[i] < stride[at])) at = i;
        used[at] = true;
        if (t->shape[at] == 1) continue;
        if (stride[at] <= reach)
            return fd_fail(err, FD_ERR_INPUT, "tensor %s: strides %s for shape %s: %s", t->name,
                           list(t->n_dim, stride, text), list(t->n_dim, t->shape, shape),
                           stride[at] <= 0 ? "expected positive ones" : "elements overlap");
        int64_t further;
        if (__builtin_mul_overflow(stride[at], t->shape[at] - 1, &further) ||
            __builtin_add_overflow(reach, further, &reach) || reach > INT64_MAX / 16)
            return fd_fail(err, FD_ERR_INPUT, "tensor %s: strides %s for shape %s reach beyond what memory holds",
                           t->name, list(t->n_dim, stride, text), list(t->n_dim, t->shape, shape));
    }
    return FD_OK;
}

static fd_code check_shape(const fd_tracer_tensor *t, fd_error *err) {
    char text[160];
    if (t->n_dim < 1 || t->n_dim > FD_TRACER_MAX_DIM)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: %d dimensions, expected 1 to %d", t->name, t->n_dim,
                       FD_TRACER_MAX_DIM);
    int64_t n = 1;
    for (int i = 0; i < t->n_dim; i++)
        if (t->shape[i] < 1 || __builtin_mul_overflow(n, t->shape[i], &n) || n > INT64_MAX / 16)
            return fd_fail(err, FD_ERR_INPUT, "tensor %s: shape %s, expected 1 to 2^59 elements", t->name,
                           list(t->n_dim, t->shape, text));
    return FD_OK;
}

/* Which axis is the position; everything after it is the tensor of one position. */
static fd_code find_rows(const fd_tracer_tensor *t, int64_t count, int *axis, fd_error *err) {
    char text[160];
    *axis = t->n_dim > 1 && t->shape[0] == 1 && count > 1 && t->shape[1] == count ? 1 : 0;
    if (t->shape[*axis] != count)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: shape %s has %" PRId64 " positions, expected %" PRId64, t->name,
                       list(t->n_dim, t->shape, text), t->shape[*axis], count);
    if (t->n_dim - *axis - 1 > FD_TRACER_ROW_DIM && t->shape[*axis + 1] != 1)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: shape %s, expected at most %d dimensions after the position",
                       t->name, list(t->n_dim, t->shape, text), FD_TRACER_ROW_DIM);
    return FD_OK;
}

/* The dimensions of one position without leading ones of 1; a tensor over keys keeps an axis of heads. */
static fd_code take_dimensions(const fd_tracer_tensor *t, const int64_t stride[], int axis, fd_tracer_view *out,
                               fd_error *err) {
    char text[160];
    int from = axis + 1, least = out->over_kv ? 2 : 1;
    while (t->n_dim - from > least && t->shape[from] == 1) from++;
    for (int missing = least - (t->n_dim - from); missing > 0; missing--) {
        out->shape[out->n_dim] = 1;
        out->stride[out->n_dim++] = 1;
    }
    int64_t elements = 1;
    for (int i = from; i < t->n_dim; i++) {
        if (out->n_dim == FD_TRACER_ROW_DIM || __builtin_mul_overflow(elements, t->shape[i], &elements) ||
            elements > INT32_MAX)
            return fd_fail(err, FD_ERR_INPUT,
                           "tensor %s: shape %s, expected at most %d dimensions and 2^31-1 elements a position",
                           t->name, list(t->n_dim, t->shape, text), FD_TRACER_ROW_DIM);
        out->shape[out->n_dim] = t->shape[i];
        out->stride[out->n_dim++] = t->shape[i] == 1 ? 1 : stride[i];
    }
    return FD_OK;
}

fd_code fd_tracer_check(const fd_tracer_tensor *t, int64_t pos0, int64_t n_tok, fd_tracer_view *out, fd_error *err) {
    *out = (fd_tracer_view){0};
    int64_t stride[FD_TRACER_MAX_DIM];
    int axis;
    FD_TRY(fd_tracer_check_name("tensor", t->name, 63, err));
    size_t bytes = fd_tracer_bytes_of(t->dtype);
    if (bytes == 0) return fd_fail(err, FD_ERR_INPUT, "tensor %s: element type %d is unknown", t->name, (int)t->dtype);
    if (!t->data) return fd_fail(err, FD_ERR_INPUT, "tensor %s: no data", t->name);
    FD_TRY(check_shape(t, err));
    FD_TRY(check_strides(t, stride, err));
    int64_t end = pos0 + n_tok, first = t->count == 0 ? pos0 : t->first, count = t->count == 0 ? n_tok : t->count;
    if (first < 0 || count < 1 || count > end || first > end - count)
        return fd_fail(err, FD_ERR_INPUT,
                       "tensor %s: %" PRId64 " positions from %" PRId64 " on, but the tokens fed end at %" PRId64,
                       t->name, count, first, end);
    if (first + count <= pos0)
        return fd_fail(err, FD_ERR_INPUT,
                       "tensor %s: positions %" PRId64 " to %" PRId64 " belong to steps that have ended", t->name,
                       first, first + count - 1);
    FD_TRY(find_rows(t, count, &axis, err));
    out->over_kv = t->over_kv || fd_ends_with(t->name, ".attn_scores") || fd_ends_with(t->name, ".attn_alibi") ||
                   fd_ends_with(t->name, ".attn_weights");
    FD_TRY(take_dimensions(t, stride, axis, out, err));
    int64_t passed = first < pos0 ? pos0 - first : 0;
    out->name = t->name;
    out->source = t->dtype;
    out->row_stride = stride[axis];
    out->first = first + passed;
    out->n_row = count - passed;
    out->data = (const char *)t->data + (size_t)(passed * stride[axis]) * bytes;
    if (out->over_kv && out->shape[out->n_dim - 1] < first + count)
        return fd_fail(err, FD_ERR_INPUT, "tensor %s: %" PRId64 " keys, expected %" PRId64 ": up to the last position",
                       t->name, out->shape[out->n_dim - 1], first + count);
    return FD_OK;
}
