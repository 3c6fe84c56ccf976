/* Filtered chunks: each filter left out, a chunk that is damaged in any bit, sizes that cannot be, threads that read
 * the same ones. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <hdf5.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "dumpers/hdf5/plain.h"
#include "tests/trace/fixture.h"

enum { ROWS = 64, COLUMNS = 96, CHUNK = 8 };

/* Rows that differ, in chunks of CHUNK of them. `filters` as in test_h5_rows.c. */
static hid_t make_set(const char *path, const char *filters, hid_t *file) {
    hsize_t dim[2] = {ROWS, COLUMNS}, chunk[2] = {CHUNK, COLUMNS};
    hid_t create = H5Pcreate(H5P_DATASET_CREATE), space = H5Screate_simple(2, dim, NULL);
    H5Pset_chunk(create, 2, chunk);
    for (; *filters; filters++) {
        if (*filters == 'd') H5Pset_deflate(create, 1);
        if (*filters == 's') H5Pset_shuffle(create);
        if (*filters == 'f') H5Pset_fletcher32(create);
    }
    *file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    hid_t set = H5Dcreate2(*file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    H5Pclose(create);
    H5Sclose(space);
    return set;
}

static float value(size_t row, size_t column) {
    return (float)(row * 1000 + column) / 7;
}

static void write_all(const char *path, const char *filters) {
    static float x[ROWS][COLUMNS];
    for (size_t r = 0; r < ROWS; r++)
        for (size_t k = 0; k < COLUMNS; k++) x[r][k] = value(r, k);
    hid_t file, set = make_set(path, filters, &file);
    cr_assert_geq(H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, x), 0);
    H5Dclose(set);
    H5Fclose(file);
}

static fd_h5_bytes read_whole(const char *path, uint8_t **data) {
    struct stat there;
    int fd = open(path, O_RDONLY);
    cr_assert(fd >= 0 && fstat(fd, &there) == 0);
    *data = malloc((size_t)there.st_size);
    cr_assert_eq(read(fd, *data, (size_t)there.st_size), there.st_size);
    close(fd);
    return (fd_h5_bytes){-1, *data, (uint64_t)there.st_size};
}

static const fd_h5_shape shape = {2, {ROWS, COLUMNS}};

static bool read_row(fd_h5_plain *plain, hsize_t row, float out[COLUMNS]) {
    fd_h5_block block = {"x", &fd_h5_f32, shape, {2, {row}}, {2, {1, COLUMNS}}};
    return fd_h5_plain_rows(plain, &block, out);
}

static bool read_all(const fd_h5_bytes *bytes, float out[ROWS][COLUMNS]) {
    fd_h5_plain plain;
    fd_h5_block block = {"x", &fd_h5_f32, shape, {.rank = 2}, shape};
    fd_h5_plain_open(&plain, bytes, NULL);
    bool ok = fd_h5_plain_rows(&plain, &block, out);
    fd_h5_plain_close(&plain);
    return ok;
}

/* ---- sound ones ---- */

static size_t shuffled(const float *x, size_t n, uint8_t *to) {
    for (size_t b = 0; b < 4; b++)
        for (size_t i = 0; i < n; i++) to[b * n + i] = ((const uint8_t *)x)[i * 4 + b];
    return n * 4;
}

/* HDF5 leaves deflate out where it is of no use, and a chunk says so. */
Test(h5_filters, one_may_be_left_out_of_a_chunk) {
    enum { N = CHUNK * COLUMNS };
    const char *path = fixture_path("filter_masks.h5");
    static float mine[ROWS][COLUMNS], theirs[ROWS][COLUMNS], x[N];
    static uint8_t moved[4 * N], packed[8 * N];
    hid_t file, set = make_set(path, "sd", &file);
    for (uint32_t c = 0; c < ROWS / CHUNK; c++) {
        uint32_t mask = c % 4; /* bit 0: shuffle, bit 1: deflate */
        for (size_t i = 0; i < N; i++) x[i] = value(c * CHUNK + i / COLUMNS, i % COLUMNS);
        memcpy(moved, x, sizeof x);
        if (!(mask & 1)) shuffled(x, N, moved);
        uLongf n = sizeof packed;
        if (!(mask & 2))
            cr_assert_eq(compress2(packed, &n, moved, sizeof moved, 1), Z_OK);
        else
            memcpy(packed, moved, n = sizeof moved);
        hsize_t at[2] = {c * CHUNK, 0};
        cr_assert_geq(H5Dwrite_chunk(set, H5P_DEFAULT, mask, at, n, packed), 0);
    }
    H5Fflush(file, H5F_SCOPE_GLOBAL);
    cr_assert_geq(H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, theirs), 0);
    H5Dclose(set);
    H5Fclose(file);
    uint8_t *data;
    fd_h5_bytes bytes = read_whole(path, &data);
    cr_assert(read_all(&bytes, mine));
    cr_expect_arr_eq(mine, theirs, sizeof mine);
    cr_expect_eq(mine[ROWS - 1][3], value(ROWS - 1, 3));
    free(data);
    unlink(path);
}

typedef struct together {
    fd_h5_inflated *inflated;
    const fd_h5_layout *layout;
    const fd_h5_chunk *chunks;
    int first;
    bool ok;
} together;

static void *read_in_thread(void *user) {
    together *t = user;
    t->ok = true;
    for (int i = 0; i < 2000 && t->ok; i++) {
        size_t c = (size_t)(t->first + i * 5) % (ROWS / CHUNK);
        fd_h5_bytes elements;
        fd_h5_piece *piece = fd_h5_inflated_begin(t->inflated, t->layout, 2, t->chunks[c], &elements);
        float x = value(c * CHUNK + 1, 7), found = 0;
        t->ok = piece && fd_h5_bytes_read(&elements, (COLUMNS + 7) * 4, 4, &found) && found == x;
        if (piece) fd_h5_inflated_end(t->inflated, piece);
    }
    return NULL;
}

Test(h5_filters, threads_read_the_same_chunks) {
    enum { THREADS = 4 };
    const char *path = fixture_path("filter_threads.h5");
    write_all(path, "sd");
    uint8_t *data;
    fd_h5_bytes bytes = read_whole(path, &data);
    fd_h5_chunk chunks[ROWS / CHUNK];
    fd_h5_object object;
    uint64_t root;
    size_t n;
    cr_assert(fd_h5_superblock_read(&bytes, &root));
    fd_h5_nearby nearby = {0};
    fd_h5_link *links = fd_h5_group_links(&bytes, &nearby.headers, root, 8, &n);
    cr_assert(links && n == 1 && fd_h5_object_read(&bytes, &nearby, links[0].address, &object));
    cr_assert(fd_h5_find_chunks(&bytes, &object.shape, &object.layout, chunks));
    pthread_t threads[THREADS];
    together t[THREADS];
    /* with room for all chunks, for two, and for none beside the one that is read */
    const size_t limits[] = {SIZE_MAX, 2 * CHUNK * COLUMNS * 4, 0};
    for (size_t k = 0; k < sizeof limits / sizeof *limits; k++) {
        fd_h5_inflated *inflated = fd_h5_inflated_new(&bytes);
        fd_h5_inflated_limit(inflated, limits[k]);
        for (int i = 0; i < THREADS; i++) {
            t[i] = (together){inflated, &object.layout, chunks, i, false};
            pthread_create(&threads[i], NULL, read_in_thread, &t[i]);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            cr_expect(t[i].ok, "thread %d with room for %zu bytes", i, limits[k]);
        }
        fd_h5_inflated_free(inflated);
    }
    free(links);
    free(data);
    unlink(path);
}

/* ---- damaged ones ---- */

/* Deflate and Fletcher's checksum both notice a bit. What is left to the library is not wrong here. */
Test(h5_filters, a_bit_of_a_chunk_is_noticed) {
    static const char *const filters[] = {"sd", "d", "f", "sf", "sdf"};
    const char *path = fixture_path("filter_bits.h5");
    static float sound[ROWS][COLUMNS], found[ROWS][COLUMNS];
    for (size_t f = 0; f < sizeof filters / sizeof *filters; f++) {
        write_all(path, filters[f]);
        uint8_t *data;
        fd_h5_bytes bytes = read_whole(path, &data);
        cr_assert(read_all(&bytes, sound), "%s", filters[f]);
        cr_assert_eq(sound[3][5], value(3, 5));
        uint64_t random = 1;
        int refused = 0;
        for (int round = 0; round < 1500; round++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t at = (random >> 20) % bytes.size;
            uint8_t bit = (uint8_t)(1u << (random >> 61));
            data[at] ^= bit;
            if (!read_all(&bytes, found))
                refused++;
            else if (at > 4096) /* before it are the headers, some of them without a checksum */
                cr_assert_arr_eq(found, sound, sizeof found, "%s: bit %d of byte %lu", filters[f], bit,
                                 (unsigned long)at);
            data[at] ^= bit;
        }
        cr_expect_gt(refused, 150, "%s", filters[f]);
        free(data);
    }
    unlink(path);
}

typedef struct size_case {
    const char *name;
    fd_h5_filters filters;
    uint32_t mask;
    uint64_t packed, bytes;
    bool fits;
} size_case;

#define DEFLATED                                                                                                       \
    { true, true, 1, {FD_H5_DEFLATE}, 0 }
#define CHECKED                                                                                                        \
    { true, true, 2, {FD_H5_SHUFFLE, FD_H5_FLETCHER}, 4 }
static const size_case sizes[] = {
    {"deflated well", DEFLATED, 0, 1000, 1000 * 1000, true},
    {"more than deflate can", DEFLATED, 0, 1000, 1034 * 1000, false},
    {"nothing", DEFLATED, 0, 0, 1 << 20, false},
    {"deflated in vain", DEFLATED, 0, 1000 + 11, 1000, true},
    {"more than deflate makes of it", DEFLATED, 0, 1200, 1000, false},
    {"deflate left out", DEFLATED, 1, 1000, 1000, true},
    {"deflate left out, and less", DEFLATED, 1, 999, 1000, false},
    {"with a checksum", CHECKED, 0, 1004, 1000, true},
    {"with half a checksum more", CHECKED, 0, 1006, 1000, false},
};

Test(h5_filters, sizes_that_cannot_be_are_refused_before_memory_is_taken) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        cr_expect_eq(fd_h5_filters_fit(&sizes[i].filters, sizes[i].mask, sizes[i].packed, sizes[i].bytes),
                     sizes[i].fits, "%s", sizes[i].name);
    fd_h5_bytes file = {-1, (const uint8_t *)"", 0}, out;
    fd_h5_inflated *inflated = fd_h5_inflated_new(&file);
    fd_h5_layout layout = {.element_bytes = 4, .filters = DEFLATED, .chunk = {1 << 20, 1 << 20}};
    cr_expect_null(fd_h5_inflated_begin(inflated, &layout, 2, (fd_h5_chunk){0, UINT32_MAX, 0}, &out),
                   "a chunk of 4 TB");
    layout.chunk[0] = layout.chunk[1] = (hsize_t)1 << 62;
    cr_expect_null(fd_h5_inflated_begin(inflated, &layout, 2, (fd_h5_chunk){0, UINT32_MAX, 0}, &out), "beyond 64 bits");
    layout.chunk[0] = layout.chunk[1] = 10;
    cr_expect_null(fd_h5_inflated_begin(inflated, &layout, 2, (fd_h5_chunk){0, 20, 0}, &out), "beyond the file");
    cr_expect_null(fd_h5_inflated_begin(NULL, &layout, 2, (fd_h5_chunk){0, 20, 0}, &out));
    fd_h5_inflated_free(inflated);
}

/* Rows in any order, chunks given up for others meanwhile, are the same rows. */
Test(h5_filters, rows_may_be_asked_for_in_any_order) {
    const char *path = fixture_path("filter_order.h5");
    write_all(path, "sd");
    uint8_t *data;
    fd_h5_bytes bytes = read_whole(path, &data);
    fd_h5_plain plain;
    fd_h5_plain_open(&plain, &bytes, NULL);
    float row[COLUMNS];
    for (hsize_t i = 0; i < 500; i++) {
        hsize_t r = i * 37 % ROWS;
        cr_assert(read_row(&plain, r, row) && row[9] == value(r, 9), "row %d", (int)r);
    }
    fd_h5_plain_close(&plain);
    free(data);
    unlink(path);
}
