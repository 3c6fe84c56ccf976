/* .npy: what is read, and what is refused. */
#include <criterion/criterion.h>
#include <string.h>

#include "dumpers/import/npy.h"

typedef struct file {
    uint8_t bytes[512];
    size_t size;
} file;

/* A file of version `major` with that header and `n` bytes of elements. */
static file make(int major, const char *header, const void *elements, size_t n) {
    file f = {.size = major == 1 ? 10 : 12};
    size_t length = strlen(header);
    memcpy(f.bytes, "\x93NUMPY", 6);
    f.bytes[6] = (uint8_t)major;
    f.bytes[8] = (uint8_t)length;
    f.bytes[9] = (uint8_t)(length >> 8);
    memcpy(f.bytes + f.size, header, length);
    if (n) memcpy(f.bytes + f.size + length, elements, n);
    f.size += length + n;
    return f;
}

#define HEADER(descr, order, shape) "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape ", }\n"

static const struct {
    const char *name;
    int major;
    const char *header;
    const char *elements;
    size_t n;
    int rank;
    double values[4];
    size_t n_value;
} good[] = {
    {"little-endian binary32", 1, HEADER("<f4", "False", "(2,)"), "\0\0\x80\x3f\0\0\0\xc0", 8, 1, {1, -2}, 2},
    {"big-endian binary32", 1, HEADER(">f4", "False", "(2,)"), "\x3f\x80\0\0\xc0\0\0\0", 8, 1, {1, -2}, 2},
    {"binary64, version 2", 2, HEADER("<f8", "False", "(1,)"), "\0\0\0\0\0\0\xf8\x3f", 8, 1, {1.5}, 1},
    {"binary16, version 3", 3, HEADER("<f2", "False", "(1, 2)"), "\0\x3c\0\xc0", 4, 2, {1, -2}, 2},
    {"bfloat16 as ml_dtypes writes it", 1, HEADER("<V2", "False", "(2,)"), "\x80\x3f\0\xc0", 4, 1, {1, -2}, 2},
    {"columns first", 1, HEADER("|i1", "True", "(2, 2)"), "\1\2\3\4", 4, 2, {1, 3, 2, 4}, 4},
    {"rows first", 1, HEADER("|i1", "False", "(2, 2)"), "\1\2\3\xfc", 4, 2, {1, 2, 3, -4}, 4},
    {"big-endian int16", 1, HEADER(">i2", "False", "(2,)"), "\xff\xfe\1\0", 4, 1, {-2, 256}, 2},
    {"int64", 1, HEADER("<i8", "False", "(1,)"), "\xff\xff\xff\xff\xff\xff\xff\xff", 8, 1, {-1}, 1},
    {"unsigned 32", 1, HEADER("<u4", "False", "(1,)"), "\xff\xff\xff\xff", 4, 1, {4294967295.0}, 1},
    {"truth", 1, HEADER("|b1", "False", "(2,)"), "\0\1", 2, 1, {0, 1}, 2},
    {"a single number", 1, HEADER("<f4", "False", "()"), "\0\0\x80\x3f", 4, 0, {1}, 1},
    {"keys in another order, double quotes",
     1,
     "{\"shape\": (2L, 1), \"fortran_order\": False, \"descr\": \"|i1\"}",
     "\5\6",
     2,
     2,
     {5, 6},
     2},
};

Test(npy, reads) {
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        file f = make(good[i].major, good[i].header, good[i].elements, good[i].n);
        fd_array array;
        fd_error err = {0};
        cr_assert_eq(fd_npy_parse("x.npy", f.bytes, f.size, &array, &err), FD_OK, "%s: %s", good[i].name, err.message);
        cr_assert_eq(array.rank, good[i].rank, "%s", good[i].name);
        double values[4];
        fd_array_fetch(&array, values);
        for (size_t k = 0; k < good[i].n_value; k++)
            cr_assert_eq(values[k], good[i].values[k], "%s: element %zu is %g", good[i].name, k, values[k]);
    }
}

static const struct {
    const char *name, *header;
    size_t n; /* zero bytes of elements */
    const char *message;
} bad[] = {
    {"cut short", HEADER("<f4", "False", "(3,)"), 8, "cut short: 8 bytes of elements, expected 12"},
    {"too long", HEADER("<f4", "False", "(1,)"), 8, "too long"},
    {"a pickle inside", HEADER("|O", "False", "(1,)"), 8, "Python objects"},
    {"structured", "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", 4, "structured"},
    {"complex", HEADER("<c8", "False", "(1,)"), 8, "dtype '<c8'"},
    {"a shape that overflows", HEADER("<f8", "False", "(4294967296, 4294967296)"), 8, "overflows"},
    {"an overflow behind a zero", HEADER("<f8", "False", "(4294967296, 4294967296, 0)"), 0, "overflows"},
    {"a number beyond 64 bits", HEADER("<f4", "False", "(99999999999999999999,)"), 4, "not a dictionary"},
    {"a negative size", HEADER("<f4", "False", "(-1,)"), 4, "not a dictionary"},
    {"nine axes", HEADER("|i1", "False", "(1,1,1,1,1,1,1,1,1)"), 1, "not a dictionary"},
    {"a key twice", "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (1,)}", 4, "given twice"},
    {"an unknown key", "{'descr': '<f4', 'code': 'x', 'fortran_order': False, 'shape': (1,)}", 4, "unknown"},
    {"no shape", "{'descr': '<f4', 'fortran_order': False}", 4, "not a dictionary"},
    {"a call", "{'descr': '<f4', 'fortran_order': False, 'shape': exit()}", 4, "not a dictionary"},
    {"text behind", "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} + 1", 4, "not a dictionary"},
    {"no header", "", 4, "not a dictionary"},
};

Test(npy, refuses) {
    static const uint8_t zeros[16];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        file f = make(1, bad[i].header, zeros, bad[i].n);
        fd_array array;
        fd_error err = {0};
        cr_assert_eq(fd_npy_parse("x.npy", f.bytes, f.size, &array, &err), FD_ERR_INPUT, "%s", bad[i].name);
        cr_assert(strstr(err.message, bad[i].message) && strstr(err.message, "x.npy"), "%s: %s", bad[i].name,
                  err.message);
    }
}

Test(npy, refuses_what_is_no_npy) {
    static const struct {
        const char *bytes;
        size_t n;
        const char *message;
    } cases[] = {
        {"", 0, "not an npy"},
        {"\x93NUMPY\1", 7, "not an npy"},
        {"\x93NUMPY\4\0\2\0{}", 12, "version 4.0"},
        {"\x93NUMPY\1\0\xff\xff{}", 12, "cut short"},
        {"\x93NUMPY\2\0\2\0", 10, "cut short"},
        {"\x80\4cos\nsystem\n", 12, "pickle"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fd_array array;
        fd_error err = {0};
        cr_assert_eq(fd_npy_parse("x.npy", cases[i].bytes, cases[i].n, &array, &err), FD_ERR_INPUT);
        cr_assert(strstr(err.message, cases[i].message), "case %zu: %s", i, err.message);
    }
}

/* Every cut of a good file is refused. */
Test(npy, every_truncation_is_refused) {
    file f = make(1, HEADER("<f4", "False", "(2,)"), "\0\0\x80\x3f\0\0\0\xc0", 8);
    for (size_t keep = 0; keep < f.size; keep++) {
        fd_array array;
        fd_error err = {0};
        cr_assert_eq(fd_npy_parse("x.npy", f.bytes, keep, &array, &err), FD_ERR_INPUT, "%zu bytes", keep);
    }
}
