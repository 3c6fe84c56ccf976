/* Attributes, written and read through the library. */
#include <stdio.h>
#include <string.h>

#include "dumpers/hdf5/h5.h"

static hid_t string_type(void) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, H5T_VARIABLE);
    H5Tset_cset(type, H5T_CSET_UTF8);
    return type;
}

/* The attribute, where it is there with a type of this class and this extent; else it is removed, and -1. */
static hid_t open_alike(hid_t object, const char *name, H5T_class_t class, hid_t space) {
    if (H5Aexists(object, name) <= 0) return -1;
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT), type = H5Aget_type(attribute),
          there = H5Aget_space(attribute);
    bool alike = type >= 0 && H5Tget_class(type) == class && there >= 0 && H5Sextent_equal(there, space) > 0;
    fd_h5_release(there);
    fd_h5_release(type);
    if (alike) return attribute;
    fd_h5_release(attribute);
    H5Adelete(object, name);
    return -1;
}

/* In place where that can be done: deleting an attribute and making it anew moves others about in the object's header,
 * and a process that is killed between two blocks of it leaves no object at all. */
static bool put(hid_t object, const char *name, hid_t file_type, hid_t memory_type, hid_t space, const void *value) {
    hid_t attribute = open_alike(object, name, H5Tget_class(file_type), space);
    if (attribute < 0) attribute = H5Acreate2(object, name, file_type, space, H5P_DEFAULT, H5P_DEFAULT);
    if (attribute < 0) return false;
    bool written = H5Awrite(attribute, memory_type, value) >= 0;
    fd_h5_release(attribute);
    return written;
}

bool fd_h5_put_string(hid_t object, const char *name, const char *value) {
    hid_t type = string_type(), space = H5Screate(H5S_SCALAR);
    bool written = put(object, name, type, type, space, &value);
    fd_h5_release(space);
    fd_h5_release(type);
    return written;
}

bool fd_h5_put_strings(hid_t object, const char *name, const char *const *values, size_t n) {
    hsize_t dim = n;
    hid_t type = string_type(), space = H5Screate_simple(1, &dim, NULL);
    bool written = put(object, name, type, type, space, values);
    fd_h5_release(space);
    fd_h5_release(type);
    return written;
}

bool fd_h5_put_int(hid_t object, const char *name, int32_t value) {
    hid_t space = H5Screate(H5S_SCALAR);
    bool written = put(object, name, H5T_STD_I32LE, H5T_NATIVE_INT32, space, &value);
    fd_h5_release(space);
    return written;
}

/* Opens an attribute of one element; -1 when there is none (*found ABSENT) or it has another shape (WRONG). */
static hid_t open_scalar(hid_t object, const char *name, fd_h5_found *found) {
    *found = FD_H5_ABSENT;
    if (H5Aexists(object, name) <= 0) return -1;
    *found = FD_H5_WRONG;
    hid_t attribute = H5Aopen(object, name, H5P_DEFAULT);
    if (attribute < 0) return -1;
    hid_t space = H5Aget_space(attribute);
    hssize_t n = space < 0 ? -1 : H5Sget_simple_extent_npoints(space);
    fd_h5_release(space);
    if (n == 1) return attribute;
    fd_h5_release(attribute);
    return -1;
}

static fd_h5_found read_variable(hid_t attribute, hid_t type, char *out, size_t size, size_t *length) {
    char *text = NULL;
    hid_t memory_type = H5Tcopy(type);
    bool read = memory_type >= 0 && H5Aread(attribute, memory_type, &text) >= 0;
    fd_h5_release(memory_type);
    if (!read) return FD_H5_WRONG;
    if (length) *length = text ? strlen(text) : 0;
    if (out) snprintf(out, size, "%s", text ? text : "");
    if (text) H5free_memory(text);
    return FD_H5_FOUND;
}

static fd_h5_found read_fixed(hid_t attribute, hid_t type, char *out, size_t size, size_t *length) {
    size_t stored = H5Tget_size(type);
    char text[4096];
    if (stored == 0 || stored >= sizeof text) return FD_H5_WRONG;
    if (H5Aread(attribute, type, text) < 0) return FD_H5_WRONG;
    text[stored] = '\0';
    size_t n = strlen(text);
    if (H5Tget_strpad(type) == H5T_STR_SPACEPAD)
        while (n > 0 && text[n - 1] == ' ') text[--n] = '\0';
    if (length) *length = n;
    if (out) snprintf(out, size, "%s", text);
    return FD_H5_FOUND;
}

fd_h5_found fd_h5_get_string(hid_t object, const char *name, char *out, size_t size, size_t *length) {
    fd_h5_found found;
    if (out) out[0] = '\0';
    hid_t attribute = open_scalar(object, name, &found);
    if (attribute < 0) return found;
    hid_t type = H5Aget_type(attribute);
    if (type >= 0 && H5Tget_class(type) == H5T_STRING)
        found = H5Tis_variable_str(type) > 0 ? read_variable(attribute, type, out, size, length)
                                             : read_fixed(attribute, type, out, size, length);
    fd_h5_release(type);
    fd_h5_release(attribute);
    return found;
}

fd_h5_found fd_h5_get_int(hid_t object, const char *name, int64_t *out) {
    fd_h5_found found;
    *out = 0;
    hid_t attribute = open_scalar(object, name, &found);
    if (attribute < 0) return found;
    hid_t type = H5Aget_type(attribute);
    H5T_class_t class = type < 0 ? H5T_NO_CLASS : H5Tget_class(type);
    if (class == H5T_INTEGER && H5Aread(attribute, H5T_NATIVE_INT64, out) >= 0) found = FD_H5_FOUND;
    /* h5py writes booleans as an enum of int8 {FALSE = 0, TRUE = 1} */
    int8_t flag = 0;
    if (class == H5T_ENUM && H5Tget_size(type) == 1 && H5Aread(attribute, type, &flag) >= 0) {
        *out = flag;
        found = FD_H5_FOUND;
    }
    fd_h5_release(type);
    fd_h5_release(attribute);
    return found;
}
