/* Rows and what a dataset says of itself, read without the library, are what the library says: every layout, every type
 * that is read, blocks of any place and size. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dumpers/hdf5/plain.h"
#include "tests/trace/fixture.h"

typedef struct row {
    int32_t first;
    char text[12];
    int32_t last;
    char note[5];
} row;

static const fd_h5_member members[] = {{"first", offsetof(row, first), 0},
                                       {"text", offsetof(row, text), sizeof((row *)0)->text},
                                       {"last", offsetof(row, last), 0},
                                       {"note", offsetof(row, note), sizeof((row *)0)->note}};
static const fd_h5_type table = {FD_H5_NO_NUMBER, sizeof(row), members, 4};

typedef struct layout_case {
    const char *name;
    bool latest, unlimited[2];
    hsize_t chunk[2];    /* 0: contiguous */
    const char *filters; /* in this order: d deflate, s shuffle, f Fletcher's checksum, x one that is the library's */
} layout_case;
enum { ROWS = 23, COLUMNS = 37, BLOCKS = 24 };
static const layout_case layouts[] = {
    {"one block", false, {false, false}, {0, 0}, ""},
    {"one block of the new format", true, {false, false}, {0, 0}, ""},
    {"old B-tree", false, {true, false}, {4, COLUMNS}, ""},
    {"old B-tree of small chunks", false, {false, true}, {3, 5}, ""},
    {"single chunk", true, {false, false}, {ROWS, COLUMNS}, ""},
    {"fixed array", true, {false, false}, {4, 10}, ""},
    {"extensible array", true, {true, false}, {2, COLUMNS}, ""},
    {"new B-tree", true, {true, true}, {6, 9}, ""},
    {"old B-tree, as h5py compresses", false, {false, false}, {6, 19}, "sd"},
    {"old B-tree, deflated and checked", false, {true, false}, {4, COLUMNS}, "df"},
    {"single chunk, deflated", true, {false, false}, {ROWS, COLUMNS}, "d"},
    {"fixed array, shuffled", true, {false, false}, {4, 10}, "s"},
    {"fixed array, checked before and deflated", true, {false, false}, {4, 10}, "fd"},
    {"extensible array, as ours", true, {true, false}, {1, COLUMNS}, "sd"},
    {"extensible array, checked", true, {true, false}, {2, COLUMNS}, "f"},
    {"extensible array, checked, shuffled, deflated", true, {true, false}, {2, COLUMNS}, "fsd"},
    {"new B-tree, all", true, {true, true}, {6, 9}, "sdf"},
    {"shuffled after deflate", true, {false, false}, {4, 10}, "ds"},
    {"left to the library", true, {false, false}, {4, 10}, "x"},
    {"of which one is left to the library", true, {false, false}, {4, 10}, "xd"},
};

static void put_filters(hid_t create, const char *filters) {
    for (; *filters; filters++) {
        if (*filters == 'd') H5Pset_deflate(create, 4);
        if (*filters == 's') H5Pset_shuffle(create);
        if (*filters == 'f') H5Pset_fletcher32(create);
        if (*filters == 'x') H5Pset_nbit(create);
    }
}

typedef struct type_case {
    const char *name;
    const fd_h5_type *memory;
    bool known; /* without the library */
} type_case;
enum { PACKED, FEWER, WIDER, PADDED, N_TABLE };
static const type_case types[] = {
    {"i32", &fd_h5_i32, true},          {"u64", &fd_h5_u64, true},           {"f32", &fd_h5_f32, true},
    {"f64", &fd_h5_f64, true},          {"half", &fd_h5_words, true},        {"word", &fd_h5_words, true},
    {"i64", &fd_h5_i32, false},         {"swapped", &fd_h5_f32, false},      {"packed", &table, true},
    {"without a column", &table, true}, {"with more columns", &table, true}, {"other padding", &table, false}};

static hid_t text_of(size_t bytes, H5T_str_t pad) {
    hid_t type = H5Tcopy(H5T_C_S1);
    H5Tset_size(type, bytes);
    H5Tset_strpad(type, pad);
    return type;
}

/* The table as it is stored: packed; without `last`; with a number before each; its texts ended by a NUL. */
static hid_t stored_table(int which) {
    hid_t type = H5Tcreate(H5T_COMPOUND, 200);
    size_t at = 0;
    for (size_t i = 0; i < 4; i++) {
        char more[16];
        snprintf(more, sizeof more, "more%zu", i);
        if (which == FEWER && i == 2) continue;
        if (which == WIDER) H5Tinsert(type, more, at, i % 2 ? H5T_IEEE_F64LE : H5T_STD_I16LE), at += 8;
        hid_t member = members[i].text ? text_of(members[i].text, which == PADDED ? H5T_STR_NULLTERM : H5T_STR_NULLPAD)
                                       : H5Tcopy(H5T_STD_I32LE);
        H5Tinsert(type, members[i].name, at, member);
        at += H5Tget_size(member);
        H5Tclose(member);
    }
    if (which != WIDER) H5Tset_size(type, at);
    return type;
}

static hid_t stored_type(size_t t) {
    hid_t half;
    switch (t) {
    case 0: return H5Tcopy(H5T_STD_I32LE);
    case 1: return H5Tcopy(H5T_STD_U64LE);
    case 2: return H5Tcopy(H5T_IEEE_F32LE);
    case 3: return H5Tcopy(H5T_IEEE_F64LE);
    case 4:
        half = H5Tcopy(H5T_IEEE_F32LE);
        H5Tset_fields(half, 15, 10, 5, 0, 10);
        H5Tset_size(half, 2);
        H5Tset_ebias(half, 15);
        return half;
    case 5: return H5Tcopy(H5T_STD_U16LE);
    case 6: return H5Tcopy(H5T_STD_I64LE);
    case 7: return H5Tcopy(H5T_IEEE_F32BE);
    default: return stored_table((int)t - 8);
    }
}

/* Any bytes will do but for texts, whose end conversion looks for. */
static void fill(char *data, hid_t type, size_t n) {
    size_t bytes = H5Tget_size(type);
    for (size_t i = 0; i < n * bytes; i++) data[i] = (char)('a' + i * 7 % 23);
}

static void write_file(const char *path, const layout_case *c) {
    hsize_t dim[2] = {ROWS, COLUMNS}, max[2];
    for (int i = 0; i < 2; i++) max[i] = c->unlimited[i] ? H5S_UNLIMITED : dim[i];
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), create = H5Pcreate(H5P_DATASET_CREATE);
    if (c->latest) H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    if (c->chunk[0]) H5Pset_chunk(create, 2, c->chunk);
    put_filters(create, c->filters);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access), space = H5Screate_simple(2, dim, max);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        hid_t type = stored_type(t);
        char *data = malloc(ROWS * COLUMNS * H5Tget_size(type));
        fill(data, type, ROWS * COLUMNS);
        hid_t set = H5Dcreate2(file, types[t].name, type, space, H5P_DEFAULT, create, H5P_DEFAULT);
        cr_assert(set >= 0 && H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, data) >= 0, "%s", types[t].name);
        H5Dclose(set);
        H5Tclose(type);
        free(data);
    }
    hid_t hole = H5Dcreate2(file, "never written", H5T_STD_I32LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    H5Dclose(hole);
    H5Sclose(space);
    H5Pclose(create);
    H5Pclose(access);
    H5Fclose(file);
}

typedef struct sides {
    fd_h5_reader *reader, *library;
    fd_h5_plain plain;
} sides;

static sides open_sides(const char *path) {
    sides s;
    fd_error err = {0};
    cr_assert_eq(fd_h5_reader_open(path, NULL, "a trace", &s.reader, &err), FD_OK, "%s", err.message);
    cr_assert_eq(fd_h5_reader_open(path, NULL, "a trace", &s.library, &err), FD_OK, "%s", err.message);
    fd_h5_plain_open(&s.plain, fd_h5_reader_bytes(s.reader), NULL);
    fd_h5_reader_leave_to_library(s.library);
    return s;
}

static void close_sides(sides *s) {
    fd_h5_plain_close(&s->plain);
    fd_h5_reader_close(s->reader);
    fd_h5_reader_close(s->library);
}

static void compare_descriptions(sides *s, const char *layout, const type_case *t, bool known) {
    fd_h5_question set = {FD_H5_DATASET, t->name, "", 0}, stored = {FD_H5_STORED, t->name, "", 0};
    fd_h5_answer a, b = fd_h5_reader_ask(s->library, &set, NULL);
    if (fd_h5_plain_ask(&s->plain, &set, NULL, &a)) {
        cr_expect(a.found == b.found && a.dataset.class == b.dataset.class && a.dataset.element == b.dataset.element &&
                      a.dataset.element_bytes == b.dataset.element_bytes && a.dataset.simple && b.dataset.simple &&
                      a.dataset.has_names == b.dataset.has_names && a.dataset.filtered == b.dataset.filtered,
                  "%s, %s", layout, t->name);
        cr_expect_arr_eq(a.dataset.shape.dim, b.dataset.shape.dim, 2 * sizeof(hsize_t), "%s, %s", layout, t->name);
    } else {
        cr_expect_not(known, "%s, %s", layout, t->name);
    }
    b = fd_h5_reader_ask(s->library, &stored, NULL);
    if (fd_h5_plain_ask(&s->plain, &stored, NULL, &a))
        cr_expect_eq(a.value, b.value, "%s, %s: %lld bytes, %lld", layout, t->name, (long long)a.value,
                     (long long)b.value);
    else
        cr_expect_not(known, "%s, %s", layout, t->name);
}

Test(h5_rows, are_what_the_library_reads) {
    const char *path = fixture_path("rows.h5");
    const fd_h5_shape shape = {2, {ROWS, COLUMNS}};
    static char mine[ROWS * COLUMNS * sizeof(row)], theirs[sizeof mine];
    uint64_t random = 1;
    for (size_t l = 0; l < sizeof layouts / sizeof *layouts; l++) {
        write_file(path, &layouts[l]);
        sides s = open_sides(path);
        int blocks = layouts[l].filters[0] ? BLOCKS / 4 : BLOCKS;
        for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
            const type_case *c = &types[t];
            bool known = c->known && !strchr(layouts[l].filters, 'x');
            compare_descriptions(&s, layouts[l].name, c, known);
            for (int round = 0; round < blocks; round++) {
                fd_h5_block block = {c->name, c->memory, shape, {.rank = 2}, {.rank = 2}};
                for (int i = 0; i < 2; i++) {
                    random = random * 6364136223846793005u + 1442695040888963407u;
                    block.start.dim[i] = round ? (random >> 33) % shape.dim[i] : 0;
                    block.count.dim[i] =
                        round ? 1 + (random >> 13) % (shape.dim[i] - block.start.dim[i]) : shape.dim[i];
                }
                memset(mine, 'z', sizeof mine);
                memset(theirs, 'z', sizeof theirs);
                cr_assert(fd_h5_reader_rows(s.library, &block, theirs), "%s, %s", layouts[l].name, c->name);
                cr_assert_eq(fd_h5_plain_rows(&s.plain, &block, mine), known, "%s, %s", layouts[l].name, c->name);
                if (known) cr_assert_arr_eq(mine, theirs, sizeof mine, "%s, %s", layouts[l].name, c->name);
            }
        }
        fd_h5_block hole = {"never written", &fd_h5_i32, shape, {.rank = 2}, shape};
        cr_expect_not(fd_h5_plain_rows(&s.plain, &hole, mine), "%s: its fill value", layouts[l].name);
        cr_expect(fd_h5_reader_rows(s.library, &hole, mine) && mine[0] == 0, "%s", layouts[l].name);
        close_sides(&s);
    }
    unlink(path);
}

/* What is asked for must be there, of this shape; nothing is read for nothing. */
Test(h5_rows, are_of_the_shape_that_is_known) {
    const char *path = fixture_path("rows_of_shape.h5");
    static char out[ROWS * COLUMNS * 4];
    write_file(path, &layouts[2]);
    sides s = open_sides(path);
    const fd_h5_shape shape = {2, {ROWS, COLUMNS}};
    fd_h5_block good = {"i32", &fd_h5_i32, shape, {.rank = 2}, shape}, block = good;
    cr_expect(fd_h5_plain_rows(&s.plain, &block, out));
    block.shape.dim[0]++;
    cr_expect_not(fd_h5_plain_rows(&s.plain, &block, out));
    block = good, block.shape.rank = 1;
    cr_expect_not(fd_h5_plain_rows(&s.plain, &block, out));
    block = good, block.start.dim[1] = 1;
    cr_expect_not(fd_h5_plain_rows(&s.plain, &block, out), "it would reach beyond");
    block = good, block.start.dim[1] = UINT64_MAX;
    cr_expect_not(fd_h5_plain_rows(&s.plain, &block, out));
    block = good, block.count.dim[1] = 0;
    cr_expect(fd_h5_plain_rows(&s.plain, &block, NULL));
    block = good, block.object = "absent";
    cr_expect_not(fd_h5_plain_rows(&s.plain, &block, out));
    close_sides(&s);
    unlink(path);
}
