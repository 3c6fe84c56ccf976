#include "dumpers/import/raw.h"

#include <string.h>

static const struct {
    const char *suffix;
    fd_array_type type;
} suffixes[] = {
    {".f32", FD_ARRAY_F32}, {".bin", FD_ARRAY_F32},   {".raw", FD_ARRAY_F32},
    {".f16", FD_ARRAY_F16}, {".bf16", FD_ARRAY_BF16}, {".f64", FD_ARRAY_F64},
};
enum { N_SUFFIX = sizeof suffixes / sizeof *suffixes };

static size_t find_suffix(const char *path) {
    const char *dot = strrchr(path, '.');
    size_t i = 0;
    while (i < N_SUFFIX && (!dot || strcmp(dot, suffixes[i].suffix) != 0)) i++;
    return i;
}

bool fd_raw_is(const char *path) {
    return find_suffix(path) < N_SUFFIX;
}

fd_code fd_raw_parse(const char *path, const void *data, size_t size, fd_array *out, fd_error *err) {
    const size_t i = find_suffix(path);
    *out = (fd_array){.type = suffixes[i].type, .rank = 1, .shape = {1}};
    const size_t of_one = (size_t)fd_array_pack(out, false);
    if (size % of_one != 0)
        return fd_fail(
            err, FD_ERR_INPUT,
            "%s: cut short, or of another type: %zu bytes, expected a multiple of %zu (%s; raw numbers of other "
            "types are named .f32, .f16, .bf16 or .f64)",
            path, size, of_one, fd_array_type_name(out->type));
    out->shape[0] = (int64_t)(size / of_one);
    fd_array_pack(out, false);
    out->data = data;
    return FD_OK;
}
