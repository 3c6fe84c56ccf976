/* What a dataset of /tensors says about itself: from its object header where that is understood, else from the
 * library. */
#include <stdlib.h>
#include <string.h>

#include "dumpers/store/reader.h"

/* A 2-byte float's format by the width of its exponent. */
static uint32_t half_of(hid_t type) {
    size_t sign, exponent, exponent_bits, mantissa, mantissa_bits;
    if (H5Tget_fields(type, &sign, &exponent, &exponent_bits, &mantissa, &mantissa_bits) < 0) return FD_DTYPE_LIMIT;
    if (exponent_bits == 5 && mantissa_bits == 10) return FD_F16;
    return exponent_bits == 8 && mantissa_bits == 7 ? FD_BF16 : FD_DTYPE_LIMIT;
}

/* Raw 16-bit words in this machine's byte order: HDF5's own conversion of halves runs at 30 MiB/s. */
static hid_t raw_half(hid_t type) {
    hid_t memory = H5Tcopy(type);
    if (memory >= 0) H5Tset_order(memory, H5Tget_order(H5T_NATIVE_UINT16));
    return memory;
}

/* The type to read with; owned by the set for 16-bit floats. */
static void set_memory(fd_trace_set *set, hid_t type, uint32_t element) {
    set->owns_memory = element == FD_F16 || element == FD_BF16;
    set->memory = element == FD_F32   ? H5T_NATIVE_FLOAT
                  : element == FD_F64 ? H5T_NATIVE_DOUBLE
                  : set->owns_memory  ? raw_half(type)
                                      : H5T_NATIVE_UINT16;
}

/* FD_F32 … FD_BF16, FD_H5_WORD16; FD_DTYPE_LIMIT for what a trace cannot hold. */
static uint32_t element_of(hid_t type) {
    H5T_class_t class = H5Tget_class(type);
    size_t size = H5Tget_size(type);
    if (class == H5T_FLOAT && size == 4) return FD_F32;
    if (class == H5T_FLOAT && size == 8) return FD_F64;
    if (class == H5T_FLOAT && size == 2) return half_of(type);
    return class == H5T_INTEGER && size == 2 ? FD_H5_WORD16 : FD_DTYPE_LIMIT;
}

/* What the elements are, with the `dtype` attribute's word for raw 16-bit ones, which must not contradict the
 * others. */
static uint32_t dtype_of(const fd_h5_object *object) {
    const char *text = object->dtype.text;
    int said = text[0] ? fd_dtype_parse(text) : -1;
    if (object->element == FD_H5_WORD16) return said == FD_F16 || said == FD_BF16 ? (uint32_t)said : FD_DTYPE_LIMIT;
    return text[0] && said != (int)object->element ? FD_DTYPE_LIMIT : object->element;
}

static fd_code unknown_elements(const fd_trace *trace, const char *name, hid_t type, const char *dtype, fd_error *err) {
    H5T_class_t class = type < 0 ? H5T_NO_CLASS : H5Tget_class(type);
    const char *kind = class == H5T_FLOAT ? "float" : class == H5T_INTEGER ? "integer" : "other";
    return fd_fail(err, FD_ERR_INPUT,
                   "%s: tensors/%s: elements of type %s, %zu bytes, attribute dtype \"%s\"; expected float32, float64, "
                   "float16, or 16-bit integers with dtype F16 or BF16",
                   trace->path, name, kind, type < 0 ? (size_t)0 : H5Tget_size(type), dtype);
}

static hid_t open_set(hid_t group, const char *name) {
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, 1, 0, 1.0); /* rows are read straight from the file, once */
    hid_t id = H5Dopen2(group, name, access);
    fd_h5_release(access);
    return id;
}

static void get_int(hid_t id, const char *name, fd_h5_attribute *out) {
    out->found = fd_h5_get_int(id, name, &out->value);
}

static void get_text(hid_t id, const char *name, fd_h5_attribute *out) {
    out->found = fd_h5_get_string(id, name, out->text, sizeof out->text, NULL);
}

static fd_code ask_library(const fd_trace *trace, hid_t group, const char *name, fd_trace_set *set, fd_h5_object *out,
                           fd_error *err) {
    memset(out, 0, sizeof *out);
    set->id = open_set(group, name);
    if (set->id < 0)
        return fd_h5_fail(err, FD_ERR_INPUT, "%s: tensors/%s: not a dataset that opens", trace->path, name);
    get_text(set->id, "dtype", &out->dtype);
    if (out->dtype.found == FD_H5_WRONG)
        return fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: attribute dtype is not a string", trace->path, name);
    get_text(set->id, "op", &out->op);
    get_int(set->id, "seq", &out->seq);
    get_int(set->id, "layer", &out->layer);
    get_int(set->id, "over_kv", &out->over_kv);
    get_int(set->id, "first_position", &out->first_position);
    hid_t type = H5Dget_type(set->id);
    out->element = type < 0 ? FD_DTYPE_LIMIT : element_of(type);
    set->dtype = dtype_of(out);
    fd_code code = FD_OK;
    if (set->dtype == FD_DTYPE_LIMIT)
        code = unknown_elements(trace, name, type, out->dtype.text, err);
    else
        set_memory(set, type, out->element);
    fd_h5_release(type);
    FD_TRY(code);
    if (!fd_h5_shape_of(set->id, &out->shape) || out->shape.rank < 2)
        return fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: rank %d, expected 2 to %d: [n_pos, ...]", trace->path, name,
                       out->shape.rank, FD_H5_MAX_RANK);
    return FD_OK;
}

fd_code fd_trace_set_describe(const fd_trace *trace, hid_t group, const fd_h5_link *link, fd_h5_nearby *nearby,
                              fd_trace_set *set, fd_h5_object *out, fd_error *err) {
    if (trace->plain && fd_h5_object_read(&trace->bytes, nearby, link->address, out) && out->shape.rank >= 2) {
        set->dtype = dtype_of(out);
        set->placed = set->dtype != FD_DTYPE_LIMIT;
    }
    if (!set->placed) FD_TRY(ask_library(trace, group, link->name, set, out, err));
    set->shape = out->shape;
    set->layout = out->layout;
    return FD_OK;
}

fd_code fd_trace_set_open(const fd_trace *trace, int32_t node, fd_error *err) {
    fd_trace_set *set = &trace->sets[node];
    const char *name = trace->nodes[node].name;
    if (set->id >= 0) return FD_OK;
    hid_t group = H5Gopen2(trace->root, "tensors", H5P_DEFAULT), id = group < 0 ? -1 : open_set(group, name);
    hid_t type = id < 0 ? -1 : H5Dget_type(id);
    fd_h5_shape shape = {0};
    fd_code code = FD_OK;
    if (type < 0)
        code = fd_h5_fail(err, FD_ERR_INPUT, "%s: tensors/%s: not a dataset that opens", trace->path, name);
    else if (!fd_h5_shape_of(id, &shape) || shape.rank != set->shape.rank ||
             memcmp(shape.dim, set->shape.dim, sizeof *shape.dim * (size_t)shape.rank) != 0)
        code = fd_fail(err, FD_ERR_INPUT, "%s: tensors/%s: its header is damaged", trace->path, name);
    else
        set_memory(set, type, element_of(type));
    fd_h5_release(type);
    fd_h5_release(group);
    if (code == FD_OK)
        set->id = id;
    else
        fd_h5_release(id);
    return code;
}

void fd_trace_set_close(fd_trace_set *set) {
    if (set->id >= 0 && set->owns_memory) fd_h5_release(set->memory);
    fd_h5_release(set->id);
    fd_trace_set_forget(set);
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
