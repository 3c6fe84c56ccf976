#include "base/limits.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int64_t value;    /* without --limit */
    const char *what; /* what there are at most so many of */
} table[FD_N_LIMIT] = {
    [FD_LIMIT_POSITIONS] = {"positions", 1 << 20, "positions of a trace, tokens of a list"},
    [FD_LIMIT_NODES] = {"nodes", 1 << 20, "nodes of a trace"},
    [FD_LIMIT_NAMES] = {"names", 16, "names of one tensor of a trace"},
    [FD_LIMIT_WEIGHTS] = {"weights", 1 << 14, "weights whose hashes a trace has"},
    [FD_LIMIT_TENSOR_BYTES] = {"tensor-bytes", INT64_C(16) << 30,
                               "bytes of one compressed tensor of an archive, inflated"},
    [FD_LIMIT_TENSORS] = {"tensors", 1 << 18, "tensors of a safetensors file or a folder"},
    [FD_LIMIT_HEADER_BYTES] = {"header-bytes", 32 << 20,
                               "bytes of a safetensors header, or of the pickle in a PyTorch file"},
    [FD_LIMIT_MEMBERS] = {"members", 1 << 18, "members of an archive"},
    [FD_LIMIT_INFLATION] = {"inflation", 100, "bytes that a byte of a file may stand for, in what is large"},
    [FD_LIMIT_MAP_BYTES] = {"map-bytes", 4 << 20, "bytes of a map"},
    [FD_LIMIT_RULES] = {"rules", 10000, "rules of a map"},
    [FD_LIMIT_TRIES] = {"tries", 100000000, "patterns of a map, times tensors that they are tried on"},
    [FD_LIMIT_TEXT_BYTES] = {"text-bytes", 64 << 20, "bytes of a file of prompts or tokens, or of an earlier verdict"},
    [FD_LIMIT_PROMPTS] = {"prompts", 100000, "prompts of a file"},
    [FD_LIMIT_JSON_MEMORY] = {"json-memory", 512 << 20, "bytes that one JSON text takes once it is read"},
    [FD_LIMIT_HDF5_MEMORY] = {"hdf5-memory", 512 << 20, "bytes that HDF5 takes for one file"},
    [FD_LIMIT_HDF5_SECONDS] = {"hdf5-seconds", 2, "seconds of processor time that HDF5 takes for one answer"},
};

static int64_t raised[FD_N_LIMIT]; /* 0: as in the table */

int64_t fd_limit_of(fd_limit limit) {
    return raised[limit] ? raised[limit] : table[limit].value;
}

/* A whole number with an optional K, M or G; 0 for anything else. */
static int64_t parse(const char *text) {
    static const char units[] = "KMG";
    char *end;
    if (*text < '0' || *text > '9') return 0;
    long long value = strtoll(text, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    int shift = unit ? 10 * (int)(unit - units + 1) : 0;
    if (end[unit != NULL] || value > INT64_MAX >> shift) return 0;
    return (int64_t)value << shift;
}

fd_code fd_limit_set(const char *assignment, fd_error *err) {
    const char *value = strchr(assignment, '=');
    size_t n = value ? (size_t)(value - assignment) : strlen(assignment);
    char names[512] = "";
    for (int i = 0; i < FD_N_LIMIT; i++) {
        bool same = strlen(table[i].name) == n && strncmp(table[i].name, assignment, n) == 0;
        int64_t limit = same && value ? parse(value + 1) : 0;
        if (same && limit < 1)
            return fd_fail(err, FD_ERR_INPUT,
                           "--limit %s: expected %s=N, a whole number from 1 on (K, M, G are "
                           "powers of 1024)",
                           assignment, table[i].name);
        if (same) {
            raised[i] = limit;
            return FD_OK;
        }
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", i ? ", " : "", table[i].name);
    }
    return fd_fail(err, FD_ERR_INPUT, "--limit %s: no limit of that name; there are %s", assignment, names);
}

fd_code fd_limit_exceeded(fd_error *err, fd_limit limit, const char *format, ...) {
    char message[768];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return fd_fail(err, FD_ERR_INPUT, "%s: the limit is %lld (--limit %s=N allows more)", message,
                   (long long)fd_limit_of(limit), table[limit].name);
}
