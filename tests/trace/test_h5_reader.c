/* What is read without the library is what the library reads; and the library's end is a message. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "dumpers/hdf5/plain.h"
#include "tests/trace/fixture.h"

enum { N = 12, LONG = 3000 };

static void put_fixed(hid_t at, const char *name, const char *text, size_t size, H5T_str_t pad) {
    hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
    char value[64] = "";
    H5Tset_size(type, size);
    H5Tset_strpad(type, pad);
    strncpy(value, text, sizeof value - 1);
    hid_t attribute = H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, type, value);
    H5Aclose(attribute);
    H5Sclose(space);
    H5Tclose(type);
}

static void put_number(hid_t at, const char *name, hid_t type, int64_t value) {
    hid_t space = H5Screate(H5S_SCALAR), attribute = H5Acreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
    H5Awrite(attribute, H5T_NATIVE_INT64, &value);
    H5Aclose(attribute);
    H5Sclose(space);
}

static void put_list(hid_t at, const char *name, hid_t type) {
    hsize_t dim = N;
    int32_t values[N];
    for (int i = 0; i < N; i++) values[i] = 3 * i - 4;
    hid_t space = H5Screate_simple(1, &dim, NULL),
          set = H5Dcreate2(at, name, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    H5Dclose(set);
    H5Sclose(space);
}

static void write_file(const char *path, bool latest, int n_member) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (latest) H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    char *text = calloc(LONG + 1, 1);
    memset(text, 'x', LONG);
    fd_h5_put_string(file, "prompt", text);
    fd_h5_put_string(file, "schema", "firstdiff-trace");
    fd_h5_put_string(file, "empty", "");
    free(text);
    put_fixed(file, "fixed", "eight", 8, H5T_STR_NULLTERM);
    put_fixed(file, "padded", "spaces  ", 8, H5T_STR_SPACEPAD);
    put_fixed(file, "full", "12345678", 8, H5T_STR_NULLPAD);
    put_number(file, "byte", H5T_STD_I8LE, -5);
    put_number(file, "word", H5T_STD_U16BE, 700);
    put_number(file, "version", H5T_STD_I64LE, 1);
    put_number(file, "huge", H5T_STD_U64LE, -1);
    put_list(file, "tokens", H5T_STD_I32LE);
    put_list(file, "words", H5T_STD_U16LE);
    put_list(file, "swapped", H5T_STD_I32BE);
    put_list(file, "wide", H5T_STD_U64LE);
    hid_t group = H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    for (int i = 0; i < n_member; i++) {
        char name[32];
        snprintf(name, sizeof name, "t%d", (i * 37) % n_member);
        put_list(group, name, H5T_STD_I32LE);
    }
    H5Lcreate_soft("/tokens", group, "soft", H5P_DEFAULT, H5P_DEFAULT);
    H5Gclose(H5Gcreate2(group, "none", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Gclose(group);
    H5Fclose(file);
    H5Pclose(access);
}

static const fd_h5_question questions[] = {
    {FD_H5_TEXT, "", "prompt", 4096},    {FD_H5_TEXT, "", "prompt", 100},    {FD_H5_TEXT, "", "prompt", 0},
    {FD_H5_TEXT, "", "schema", 64},      {FD_H5_TEXT, "", "empty", 64},      {FD_H5_TEXT, "", "fixed", 64},
    {FD_H5_TEXT, "", "padded", 64},      {FD_H5_TEXT, "", "full", 64},       {FD_H5_TEXT, "", "byte", 64},
    {FD_H5_TEXT, "", "absent", 64},      {FD_H5_INTEGER, "", "byte", 0},     {FD_H5_INTEGER, "", "word", 0},
    {FD_H5_INTEGER, "", "version", 0},   {FD_H5_INTEGER, "", "huge", 0},     {FD_H5_INTEGER, "", "schema", 0},
    {FD_H5_INTEGER, "", "absent", 0},    {FD_H5_HAS, "tokens", "", 0},       {FD_H5_HAS, "tensors", "", 0},
    {FD_H5_HAS, "tensors/t3", "", 0},    {FD_H5_HAS, "tensors/t", "", 0},    {FD_H5_HAS, "tensors/none/x", "", 0},
    {FD_H5_HAS, "none", "", 0},          {FD_H5_HAS, "tensors/soft", "", 0}, {FD_H5_DATASET, "tokens", "", 0},
    {FD_H5_DATASET, "words", "", 0},     {FD_H5_DATASET, "swapped", "", 0},  {FD_H5_DATASET, "wide", "", 0},
    {FD_H5_DATASET, "tensors", "", 0},   {FD_H5_DATASET, "none", "", 0},     {FD_H5_STORED, "tokens", "", 0},
    {FD_H5_STORED, "tensors/t1", "", 0}, {FD_H5_HASHES, "wide", "", 800},    {FD_H5_HASHES, "wide", "", 8},
};

static bool same_shape(const fd_h5_shape *a, const fd_h5_shape *b) {
    return a->rank == b->rank && (a->rank < 1 || memcmp(a->dim, b->dim, (size_t)a->rank * sizeof *a->dim) == 0);
}

/* Both sides of every question, list and row. `known`: how many answers are to be known without the library. */
static void compare_sides(const char *path, size_t known) {
    fd_error err = {0};
    fd_h5_reader *reader;
    cr_assert_eq(fd_h5_reader_open(path, NULL, "a trace", &reader, &err), FD_OK, "%s", err.message);
    fd_h5_plain plain;
    fd_h5_plain_open(&plain, fd_h5_reader_bytes(reader), NULL);
    fd_h5_reader *library; /* the same file, and nothing is known of it without the library */
    cr_assert_eq(fd_h5_reader_open(path, NULL, "a trace", &library, &err), FD_OK);
    fd_h5_reader_leave_to_library(library);
    size_t n_known = 0;
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        const fd_h5_question *q = &questions[i];
        char a[4096] = "", b[4096] = "";
        fd_h5_answer x, y = fd_h5_reader_ask(library, q, b);
        if (!fd_h5_plain_ask(&plain, q, a, &x)) continue;
        n_known++;
        cr_expect_eq(x.found, y.found, "%s/%s", q->object, q->name);
        cr_expect_eq(x.value, y.value, "%s/%s", q->object, q->name);
        cr_expect_str_eq(a, b, "%s/%s", q->object, q->name);
        if (q->kind != FD_H5_DATASET) continue;
        cr_expect(same_shape(&x.dataset.shape, &y.dataset.shape) && x.dataset.class == y.dataset.class &&
                      x.dataset.element == y.dataset.element && x.dataset.element_bytes == y.dataset.element_bytes &&
                      x.dataset.filtered == y.dataset.filtered && x.dataset.simple == y.dataset.simple,
                  "%s", q->object);
    }
    cr_expect_geq(n_known, known, "%zu", n_known);
    size_t n_a, n_b;
    fd_h5_link *a = fd_h5_plain_links(&plain, "", 100, &n_a), *b = fd_h5_reader_links(library, "", 100, &n_b);
    cr_assert(a && b && n_a == n_b, "%p %p %zu %zu", (void *)a, (void *)b, n_a, n_b);
    for (size_t i = 0; i < n_a; i++) cr_expect(strcmp(a[i].name, b[i].name) == 0 && a[i].address == b[i].address);
    free(a);
    free(b);
    int32_t of_plain[5], of_library[5];
    fd_h5_block block = {"tokens", &fd_h5_i32, {1, {N}}, {1, {3}}, {1, {5}}};
    cr_assert(fd_h5_plain_rows(&plain, &block, of_plain) && fd_h5_reader_rows(library, &block, of_library));
    cr_expect_arr_eq(of_plain, of_library, sizeof of_plain);
    cr_expect_eq(of_plain[0], 5);
    block.object = "swapped";
    cr_expect_not(fd_h5_plain_rows(&plain, &block, of_plain));
    cr_expect(fd_h5_reader_rows(library, &block, of_library) && of_library[4] == 17);
    fd_h5_plain_close(&plain);
    fd_h5_reader_close(reader);
    fd_h5_reader_close(library);
}

Test(h5_reader, says_what_the_library_says) {
    const char *path = fixture_path("reader.h5");
    for (int latest = 0; latest < 2; latest++)
        for (int n = 1; n < 300; n += 97) {
            write_file(path, latest, n);
            compare_sides(path, latest ? 10 : 22);
        }
    unlink(path);
}

/* A block of more than a page's bytes comes in pieces, cut along any dimension. */
Test(h5_reader, rows_come_in_pieces) {
    const char *path = fixture_path("pieces.h5");
    hsize_t dim[3] = {3, 5, 700000}; /* 42 MB: 2.8 MB a run */
    size_t n = (size_t)(dim[0] * dim[1] * dim[2]);
    int32_t *values = malloc(n * 4), *read = malloc(n * 4);
    for (size_t i = 0; i < n; i++) values[i] = (int32_t)(i * 2654435761u);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate_simple(3, dim, NULL);
    hid_t set = H5Dcreate2(file, "x", H5T_STD_I32BE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    H5Dclose(set);
    H5Sclose(space);
    H5Fclose(file);
    fd_h5_reader *reader;
    fd_error err = {0};
    cr_assert_eq(fd_h5_reader_open(path, NULL, "a trace", &reader, &err), FD_OK, "%s", err.message);
    fd_h5_shape shape = {3, {3, 5, 700000}};
    fd_h5_block block = {"x", &fd_h5_i32, shape, {.rank = 3}, shape};
    cr_assert(fd_h5_reader_rows(reader, &block, read));
    cr_expect_eq(memcmp(values, read, n * 4), 0);
    block.start.dim[0] = 1, block.start.dim[1] = 2, block.start.dim[2] = 10;
    block.count.dim[0] = 2, block.count.dim[1] = 3, block.count.dim[2] = 100000;
    cr_assert(fd_h5_reader_rows(reader, &block, read));
    bool same = true;
    for (size_t i = 0, at = 0; i < 2; i++)
        for (size_t k = 0; k < 3; k++, at += 100000)
            same = same && memcmp(read + at, values + ((1 + i) * 5 + 2 + k) * 700000 + 10, 400000) == 0;
    cr_expect(same);
    block.shape.dim[2]++;
    cr_expect_not(fd_h5_reader_rows(reader, &block, read), "of another shape");
    fd_h5_reader_close(reader);
    free(values);
    free(read);
    unlink(path);
}

/* What is not plain must be left to the library. */
Test(h5_reader, other_filters_and_elements_are_left_to_the_library) {
    const char *path = fixture_path("not_plain.h5");
    hid_t types[] = {H5T_IEEE_F32BE, H5T_STD_I32LE, H5T_STD_U16BE, H5T_C_S1, H5T_IEEE_F32LE};
    hsize_t dim[2] = {4, 4};
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT), space = H5Screate_simple(2, dim, NULL);
    for (int i = 0; i < 5; i++) {
        char name[8];
        snprintf(name, sizeof name, "x%d", i);
        hid_t create = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_chunk(create, 2, dim);
        if (i == 4) H5Pset_scaleoffset(create, H5Z_SO_FLOAT_DSCALE, 2);
        hid_t set = H5Dcreate2(file, name, types[i], space, H5P_DEFAULT, create, H5P_DEFAULT);
        H5Fflush(file, H5F_SCOPE_GLOBAL);
        H5O_info_t info;
        H5Oget_info2(set, &info, H5O_INFO_BASIC);
        struct stat there;
        fd_h5_bytes bytes = {open(path, O_RDONLY), NULL, 0};
        fstat(bytes.fd, &there);
        bytes.size = (uint64_t)there.st_size;
        fd_h5_object o;
        cr_expect_not(fd_h5_object_read(&bytes, &(fd_h5_nearby){0}, info.addr, &o), "type %d", i);
        close(bytes.fd);
        H5Pclose(create);
        H5Dclose(set);
    }
    H5Sclose(space);
    H5Fclose(file);
    unlink(path);
}
