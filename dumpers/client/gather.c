#include <stdlib.h>
#include <string.h>

#include "dumpers/client/tracer.h"
#include "model/gguf/quant.h"

/* n elements, `stride` elements apart, into a contiguous run of the stored type. */
static void copy_run(fd_tracer_dtype source, const char *from, int64_t stride, int64_t n, char *to) {
    size_t size = fd_tracer_bytes_of(source), step = (size_t)stride * size;
    if (source == FD_TRACER_I8) {
        for (int64_t i = 0; i < n; i++, from += step) {
            float value = (float)*(const int8_t *)from;
            memcpy(to + i * 4, &value, 4);
        }
    } else if (source == FD_TRACER_I32) {
        for (int64_t i = 0; i < n; i++, from += step) {
            int32_t whole;
            memcpy(&whole, from, 4);
            double value = whole;
            memcpy(to + i * 8, &value, 8);
        }
    } else if (stride == 1) {
        memcpy(to, from, (size_t)n * size);
    } else if (size == 4) {
        for (int64_t i = 0; i < n; i++, from += step) memcpy(to + i * 4, from, 4);
    } else {
        for (int64_t i = 0; i < n; i++, from += step) memcpy(to + (size_t)i * size, from, size);
    }
}

size_t fd_tracer_row_bytes(const fd_tracer_set *set, int64_t n_key) {
    return (size_t)set->n_element * fd_element_bytes(set->form.dtype) * (set->form.over_kv ? (size_t)n_key : 1);
}

void fd_tracer_drop_rows(fd_tracer_set *set) {
    free(set->rows);
    free(set->held);
    set->rows = NULL;
    set->held = NULL;
}

static void fill_run(const fd_tensor_form *form, int64_t n, char *to) {
    size_t element = fd_element_bytes(form->dtype);
    for (int64_t i = 0; i < n; i++) memcpy(to + (size_t)i * element, fd_form_fill(form), element);
}

void fd_tracer_gather(const fd_tracer_view *view, int64_t r, const fd_tracer_set *set, int64_t keys, int64_t n_key,
                      char *out) {
    int n_walked = view->n_dim - 1; /* dimensions [0, n_walked) are walked, the rest is one run */
    int64_t run = view->over_kv ? keys : view->shape[n_walked], inner = view->stride[n_walked];
    while (!view->over_kv && n_walked > 0 && view->stride[n_walked - 1] == run * inner) run *= view->shape[--n_walked];
    size_t size = fd_tracer_bytes_of(view->source), element = fd_element_bytes(set->form.dtype);
    const char *row = view->data + (size_t)(r * view->row_stride) * size;
    int64_t at[FD_TRACER_ROW_DIM] = {0}, n_run = 1;
    for (int d = 0; d < n_walked; d++) n_run *= view->shape[d];
    for (int64_t i = 0; i < n_run; i++) {
        int64_t offset = 0;
        for (int d = 0; d < n_walked; d++) offset += at[d] * view->stride[d];
        copy_run(view->source, row + (size_t)offset * size, inner, run, out);
        if (view->over_kv) fill_run(&set->form, n_key - keys, out + (size_t)keys * element);
        out += (size_t)(view->over_kv ? n_key : run) * element;
        for (int d = n_walked - 1; d >= 0 && ++at[d] == view->shape[d]; d--) at[d] = 0;
    }
}

static float widened(uint32_t dtype, const char *from) {
    float value;
    uint16_t half;
    if (dtype == FD_F32) {
        memcpy(&value, from, 4);
        return value;
    }
    memcpy(&half, from, 2);
    return dtype == FD_F16 ? fd_f16_to_f32(half) : fd_bf16_to_f32(half);
}

fd_fingerprint fd_tracer_print(const fd_tracer_set *set, const char *row, int64_t keys, int64_t n_key) {
    const fd_tensor_form *form = &set->form;
    size_t element = fd_element_bytes(form->dtype);
    int64_t n_run = form->over_kv ? set->n_element : 1, run = form->over_kv ? keys : set->n_element;
    int64_t stride = form->over_kv ? n_key : run;
    if (n_run == 1 && form->dtype == FD_F32) return fd_fingerprint_f32((const float *)(const void *)row, run);
    fd_fingerprint f = {0, 0};
    uint64_t at = 0, low = 0;
    for (int64_t i = 0; i < n_run; i++)
        for (int64_t k = 0; k < run; k++, at++) {
            const char *from = row + (size_t)(i * stride + k) * element;
            if (form->dtype == FD_F64) {
                double value;
                memcpy(&value, from, 8);
                fd_fingerprint_add(&f, at, fd_canonical64(value));
                continue;
            }
            uint64_t bits = fd_canonical32(widened(form->dtype, from));
            if (at % 2 == 0)
                low = bits;
            else
                fd_fingerprint_add(&f, at / 2, low | bits << 32);
        }
    if (form->dtype != FD_F64 && at % 2) fd_fingerprint_add(&f, at / 2, low);
    return fd_fingerprint_end(f, at);
}
