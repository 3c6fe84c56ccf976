/* What a dataset of /tensors says about itself: from its object header where that is understood, else from the
 * library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/reader.h"

const char *fd_tensor_path(const char *name, char out[FD_TRACE_PATH]) {
    snprintf(out, FD_TRACE_PATH, "tensors/%s", name);
    return out;
}

/* What the elements are, with the `dtype` attribute's word for raw 16-bit ones, which must not contradict the
 * others. */
static uint32_t dtype_of(const fd_h5_object *object) {
    const char *text = object->dtype.text;
    int said = text[0] ? fd_dtype_parse(text) : -1;
    if (object->element == FD_H5_WORD16) return said == FD_F16 || said == FD_BF16 ? (uint32_t)said : FD_DTYPE_LIMIT;
    return text[0] && said != (int)object->element ? FD_DTYPE_LIMIT : object->element;
}

static fd_code unknown_elements(const fd_trace *trace, const char *name, const fd_h5_dataset *set, const char *dtype,
                                fd_error *err) {
    const char *kind = set->class == FD_H5_IS_FLOAT ? "float" : set->class == FD_H5_IS_INTEGER ? "integer" : "other";
    return fd_fail(err, FD_ERR_INPUT,
                   "%s: tensors/%s: elements of type %s, %zu bytes, attribute dtype \"%s\"; expected float32, float64, "
                   "float16, or 16-bit integers with dtype F16 or BF16",
                   trace->path, name, kind, (size_t)set->element_bytes, dtype);
}

static fd_code ask_library(const fd_trace *trace, const char *name, fd_trace_set *set, fd_h5_object *out,
                           fd_error *err) {
    char path[FD_TRACE_PATH];
    fd_h5_reader *reader = trace->reader;
    fd_h5_dataset found;
    memset(out, 0, sizeof *out);
    fd_tensor_path(name, path);
    if (!fd_h5_reader_dataset(reader, path, &found))
        return fd_h5_reader_fail(reader, err, FD_ERR_INPUT, "%s: tensors/%s: not a dataset that opens", trace->path,
                                 name);
    out->dtype.found = fd_h5_reader_string(reader, path, "dtype", out->dtype.text, sizeof out->dtype.text, NULL);
    if (out->dtype.found == FD_H5_WRONG)
        return fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: attribute dtype is not a string", trace->path, name);
    out->op.found = fd_h5_reader_string(reader, path, "op", out->op.text, sizeof out->op.text, NULL);
    out->seq.found = fd_h5_reader_int(reader, path, "seq", &out->seq.value);
    out->layer.found = fd_h5_reader_int(reader, path, "layer", &out->layer.value);
    out->over_kv.found = fd_h5_reader_int(reader, path, "over_kv", &out->over_kv.value);
    out->first_position.found = fd_h5_reader_int(reader, path, "first_position", &out->first_position.value);
    out->last_rows.found = fd_h5_reader_int(reader, path, "last_rows", &out->last_rows.value);
    out->element = found.element;
    out->shape = found.shape;
    set->dtype = dtype_of(out);
    if (set->dtype == FD_DTYPE_LIMIT) return unknown_elements(trace, name, &found, out->dtype.text, err);
    if (!found.simple || found.shape.rank < 2)
        return fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: rank %d, expected 2 to %d: [n_pos, ...]", trace->path, name,
                       found.shape.rank, FD_H5_MAX_RANK);
    return FD_OK;
}

static const fd_h5_question wanted[] = {{FD_H5_DATASET, NULL, "", 0},
                                        {FD_H5_TEXT, NULL, "dtype", sizeof((fd_h5_attribute *)0)->text},
                                        {FD_H5_TEXT, NULL, "op", sizeof((fd_h5_attribute *)0)->text},
                                        {FD_H5_INTEGER, NULL, "seq", 0},
                                        {FD_H5_INTEGER, NULL, "layer", 0},
                                        {FD_H5_INTEGER, NULL, "over_kv", 0},
                                        {FD_H5_INTEGER, NULL, "first_position", 0},
                                        {FD_H5_INTEGER, NULL, "last_rows", 0}};

/* Has the library asked about dataset i and some after it: the more, the more of them our own reader leaves to it. */
static void look_ahead(const fd_trace *trace, fd_trace_links *links, size_t i) {
    enum { MOST = 64, N = sizeof wanted / sizeof *wanted };
    char paths[MOST][FD_TRACE_PATH];
    fd_h5_question questions[MOST * N];
    size_t n = links->ahead ? links->ahead : 1;
    if (i < links->asked) return;
    links->ahead = n < MOST ? 2 * n : MOST;
    for (size_t k = 0; k < n && i + k < links->n; k++) {
        fd_tensor_path(links->links[i + k].name, paths[k]);
        for (size_t q = 0; q < N; q++) {
            questions[k * N + q] = wanted[q];
            questions[k * N + q].object = paths[k];
        }
    }
    if (n > links->n - i) n = links->n - i;
    fd_h5_reader_prefetch(trace->reader, questions, n * N);
    links->asked = i + n;
}

fd_code fd_trace_set_describe(const fd_trace *trace, fd_trace_links *links, size_t i, fd_trace_set *set,
                              fd_h5_object *out, fd_error *err) {
    const fd_h5_link *link = &links->links[i];
    bool read = trace->plain && fd_h5_object_describe(&trace->bytes, &links->nearby, link->address, out) &&
                out->shape.rank >= 2 && (set->dtype = dtype_of(out)) != FD_DTYPE_LIMIT;
    set->placed = read && out->layout.readable;
    if (!read) look_ahead(trace, links, i);
    if (!read) FD_TRY(ask_library(trace, link->name, set, out, err));
    set->shape = out->shape;
    set->layout = out->layout;
    return FD_OK;
}

void fd_trace_set_forget(fd_trace_set *set) {
    if (set->chunks != &set->only) free(set->chunks);
    set->chunks = NULL;
}

int64_t fd_trace_elements(const fd_trace_node *node, int32_t pos) {
    int64_t n = 1;
    for (int32_t i = 0; i < node->n_dim; i++)
        n *= node->over_kv && i == node->n_dim - 1 ? (int64_t)pos + 1 : node->shape[i];
    return n;
}
