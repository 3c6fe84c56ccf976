#include "dumpers/import/array.h"

#include <stdio.h>
#include <string.h>

#include "model/gguf/quant.h"

static const struct {
    const char *name;
    uint8_t bytes;
    bool is_float;
} types[FD_ARRAY_TYPE_COUNT] = {
    [FD_ARRAY_F16] = {"f16", 2, true},    [FD_ARRAY_BF16] = {"bf16", 2, true}, [FD_ARRAY_F32] = {"f32", 4, true},
    [FD_ARRAY_F64] = {"f64", 8, true},    [FD_ARRAY_I8] = {"i8", 1, false},    [FD_ARRAY_I16] = {"i16", 2, false},
    [FD_ARRAY_I32] = {"i32", 4, false},   [FD_ARRAY_I64] = {"i64", 8, false},  [FD_ARRAY_U8] = {"u8", 1, false},
    [FD_ARRAY_U16] = {"u16", 2, false},   [FD_ARRAY_U32] = {"u32", 4, false},  [FD_ARRAY_U64] = {"u64", 8, false},
    [FD_ARRAY_BOOL] = {"bool", 1, false},
};

const char *fd_array_type_name(fd_array_type type) {
    return types[type].name;
}

bool fd_array_is_float(fd_array_type type) {
    return types[type].is_float;
}

int64_t fd_array_pack(fd_array *array, bool fortran) {
    int64_t bytes = (int64_t)types[array->type].bytes;
    if (array->rank < 0 || array->rank > FD_ARRAY_MAX_RANK) return -1;
    bool empty = false;
    for (int i = 0; i < array->rank; i++) {
        int axis = fortran ? i : array->rank - 1 - i;
        if (array->shape[axis] < 0) return -1;
        array->stride[axis] = bytes;
        empty = empty || array->shape[axis] == 0;
        /* a zero must not hide the overflow of the others */
        if (array->shape[axis] > 0 && __builtin_mul_overflow(bytes, array->shape[axis], &bytes)) return -1;
    }
    return empty ? 0 : bytes;
}

const char *fd_array_shape_text(int rank, const int64_t *shape, char out[128]) {
    size_t at = 0;
    out[at++] = '[';
    for (int i = 0; i < rank && at < 100; i++)
        at += (size_t)snprintf(out + at, 128 - at, "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(out + at, 128 - at, "]");
    return out;
}

static uint64_t load(const uint8_t *from, size_t bytes, bool swapped) {
    uint8_t b[8] = {0};
    for (size_t i = 0; i < bytes; i++) b[i] = from[swapped ? bytes - 1 - i : i];
    uint64_t bits; /* little-endian, as every machine this is built for */
    memcpy(&bits, b, 8);
    return bits;
}

static double value_of(const fd_array *array, const uint8_t *from) {
    uint64_t bits = load(from, types[array->type].bytes, array->swapped);
    uint32_t low = (uint32_t)bits;
    float f32;
    double f64;
    switch (array->type) {
    case FD_ARRAY_F16: return (double)fd_f16_to_f32((uint16_t)bits);
    case FD_ARRAY_BF16: return (double)fd_bf16_to_f32((uint16_t)bits);
    case FD_ARRAY_F32: memcpy(&f32, &low, 4); return (double)f32;
    case FD_ARRAY_F64: memcpy(&f64, &bits, 8); return f64;
    case FD_ARRAY_I8: return (double)(int8_t)bits;
    case FD_ARRAY_I16: return (double)(int16_t)bits;
    case FD_ARRAY_I32: return (double)(int32_t)bits;
    case FD_ARRAY_I64: return (double)(int64_t)bits;
    case FD_ARRAY_BOOL: return bits != 0;
    case FD_ARRAY_U8:
    case FD_ARRAY_U16:
    case FD_ARRAY_U32:
    case FD_ARRAY_U64:
    case FD_ARRAY_TYPE_COUNT: break;
    }
    return (double)bits;
}

/* A run of elements along the last axis; the common type without a call for each. */
static void fetch_run(const fd_array *array, const uint8_t *from, int64_t n, int64_t stride, double *out) {
    if (array->type != FD_ARRAY_F32 || array->swapped) {
        for (int64_t i = 0; i < n; i++) out[i] = value_of(array, from + i * stride);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        float value;
        memcpy(&value, from + i * stride, sizeof value);
        out[i] = (double)value;
    }
}

static double *fetch_axis(const fd_array *array, int axis, const uint8_t *from, double *out) {
    if (axis == array->rank) {
        *out = value_of(array, from);
        return out + 1;
    }
    if (axis == array->rank - 1) {
        fetch_run(array, from, array->shape[axis], array->stride[axis], out);
        return out + array->shape[axis];
    }
    for (int64_t i = 0; i < array->shape[axis]; i++)
        out = fetch_axis(array, axis + 1, from + i * array->stride[axis], out);
    return out;
}

void fd_array_fetch(const fd_array *array, double *out) {
    fetch_axis(array, 0, array->data, out);
}

bool fd_array_reshape(fd_array *array, int rank, const int64_t *shape) {
    fd_array packed = *array, out = *array;
    out.rank = rank;
    memcpy(out.shape, shape, sizeof(int64_t) * (size_t)rank);
    if (fd_array_pack(&packed, false) != fd_array_pack(&out, false)) return false;
    for (int i = 0; i < array->rank; i++)
        if (array->shape[i] > 1 && array->stride[i] != packed.stride[i]) return false;
    *array = out;
    return true;
}

fd_array fd_array_at(const fd_array *array, int axis, int64_t i) {
    fd_array at = *array;
    at.data += i * array->stride[axis];
    at.rank--;
    for (int k = axis; k < at.rank; k++) {
        at.shape[k] = array->shape[k + 1];
        at.stride[k] = array->stride[k + 1];
    }
    return at;
}
