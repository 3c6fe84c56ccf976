/* What is read past the HDF5 library is what the library reads: every layout and chunk index, against H5Dread_chunk. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "dumpers/hdf5/index.h"
#include "tests/trace/fixture.h"

enum { GROW = 0 }; /* as a limit: unlimited */

typedef struct layout_case {
    const char *name;
    bool latest; /* file format: HDF5 1.10's, else the earliest */
    int rank;
    hsize_t dim[3], chunk[3], max[3]; /* chunk[0] 0: contiguous; max[0] -1: as dim */
    fd_h5_index index;
    bool early, sparse, shrunk, grown; /* allocated at once; written here and there; cut after writing; extended */
} layout_case;

#define AS_DIM                                                                                                         \
    { (hsize_t) - 1 }
static const layout_case cases[] = {
    {"one block", false, 2, {7, 33}, {0}, AS_DIM, FD_H5_CONTIGUOUS, .early = false},
    {"one block of the new format", true, 3, {7, 3, 11}, {0}, AS_DIM, FD_H5_CONTIGUOUS, .early = false},
    {"never written", false, 2, {7, 33}, {0}, AS_DIM, FD_H5_CONTIGUOUS, .sparse = true},
    {"old B-tree", false, 2, {9, 33}, {2, 10}, AS_DIM, FD_H5_BTREE_1, .early = false},
    {"old B-tree of three levels", false, 2, {20000, 4}, {1, 4}, {GROW, 4}, FD_H5_BTREE_1, .early = false},
    {"old B-tree with holes", false, 3, {300, 3, 9}, {2, 3, 4}, {GROW, 3, GROW}, FD_H5_BTREE_1, .sparse = true},
    {"old B-tree cut short", false, 2, {300, 9}, {2, 4}, {GROW, GROW}, FD_H5_BTREE_1, .shrunk = true},
    {"single chunk", true, 2, {5, 8}, {5, 8}, AS_DIM, FD_H5_SINGLE_CHUNK, .early = false},
    {"implicit", true, 2, {9, 33}, {2, 10}, {12, 50}, FD_H5_IMPLICIT, .early = true},
    {"fixed array", true, 2, {9, 33}, {2, 10}, AS_DIM, FD_H5_FIXED_ARRAY, .early = false},
    {"fixed array within wider limits", true, 3, {9, 3, 7}, {2, 2, 2}, {20, 5, 30}, FD_H5_FIXED_ARRAY, .grown = true},
    {"fixed array of pages", true, 2, {5000, 3}, {2, 3}, AS_DIM, FD_H5_FIXED_ARRAY, .early = false},
    {"fixed array of pages with holes", true, 2, {9001, 2}, {1, 2}, AS_DIM, FD_H5_FIXED_ARRAY, .sparse = true},
    {"extensible array of 3", true, 2, {3, 8}, {1, 8}, {GROW, 8}, FD_H5_EXTENSIBLE_ARRAY, .early = false},
    {"extensible array", true, 3, {40, 3, 5}, {4, 3, 2}, {GROW, 3, 9}, FD_H5_EXTENSIBLE_ARRAY, .grown = true},
    {"extensible array of super blocks", true, 2, {3000, 2}, {1, 2}, {GROW, 2}, FD_H5_EXTENSIBLE_ARRAY, .early = false},
    {"extensible array of pages", true, 2, {150000, 1}, {1, 1}, {GROW, 1}, FD_H5_EXTENSIBLE_ARRAY, .early = false},
    {"extensible array of pages with holes",
     true,
     2,
     {150000, 1},
     {1, 1},
     {GROW, 1},
     FD_H5_EXTENSIBLE_ARRAY,
     .sparse = true},
    {"extensible array cut short", true, 2, {400, 2}, {1, 2}, {GROW, 2}, FD_H5_EXTENSIBLE_ARRAY, .shrunk = true},
    {"new B-tree", true, 3, {9, 2, 20}, {4, 2, 8}, {GROW, 2, GROW}, FD_H5_BTREE_2, .early = false},
    {"new B-tree of three levels", true, 3, {300, 1, 300}, {1, 1, 9}, {GROW, 1, GROW}, FD_H5_BTREE_2, .early = false},
    {"new B-tree with holes", true, 2, {300, 300}, {3, 7}, {GROW, GROW}, FD_H5_BTREE_2, .sparse = true},
};

/* Filtered or not the chunks are in the same places of the grid. */
static const struct {
    const char *name;
    bool shuffle, deflate, fletcher;
} filters[] = {{"as they are", false, false, false}, {"shuffled, deflated, checked", true, true, true}};
enum { N_FILTER = sizeof filters / sizeof *filters };

static void put_filters(hid_t create, int f) {
    if (filters[f].shuffle) H5Pset_shuffle(create);
    if (filters[f].deflate) H5Pset_deflate(create, 1);
    if (filters[f].fletcher) H5Pset_fletcher32(create);
}

static hid_t create_set(hid_t file, const layout_case *c, int f) {
    hsize_t max[3];
    for (int i = 0; i < c->rank; i++)
        max[i] = c->max[0] == (hsize_t)-1 ? c->dim[i] : c->max[i] == GROW ? H5S_UNLIMITED : c->max[i];
    hid_t space = H5Screate_simple(c->rank, c->dim, max), create = H5Pcreate(H5P_DATASET_CREATE);
    if (c->chunk[0]) H5Pset_chunk(create, c->rank, c->chunk);
    if (c->early) H5Pset_alloc_time(create, H5D_ALLOC_TIME_EARLY);
    put_filters(create, f);
    hid_t set = H5Dcreate2(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    H5Pclose(create);
    H5Sclose(space);
    return set;
}

static void write_rows(hid_t set, const layout_case *c, hsize_t first, hsize_t n) {
    hsize_t row = 1, start[3] = {first}, count[3] = {n};
    for (int i = 1; i < c->rank; i++) row *= count[i] = c->dim[i];
    float *x = malloc(n * row * sizeof *x);
    for (hsize_t i = 0; i < n * row; i++) x[i] = (float)(first * row + i) + 0.5f;
    fd_h5_write_block(set, H5T_NATIVE_FLOAT, c->rank, start, count, x);
    free(x);
}

/* The dataset "x" of a new file; what the library knows of it is flushed. */
static hid_t write_case(const char *path, const layout_case *c, int f, hid_t *file) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (c->latest) H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    *file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    H5Pclose(access);
    hid_t set = create_set(*file, c, f);
    if (!c->sparse) write_rows(set, c, 0, c->dim[0]);
    for (hsize_t at = 0; c->sparse && c->chunk[0] && at < c->dim[0]; at += 1 + c->dim[0] / 7) write_rows(set, c, at, 1);
    hsize_t dim[3] = {c->dim[0], c->dim[1], c->dim[2]};
    if (c->shrunk) dim[0] = dim[0] / 2 + 1;
    if (c->grown) dim[c->rank - 1] += 2;
    if (c->shrunk || c->grown) H5Dset_extent(set, dim);
    H5Fflush(*file, H5F_SCOPE_GLOBAL);
    return set;
}

static uint64_t header_of(hid_t set) {
    H5O_info_t info;
    H5Oget_info2(set, &info, H5O_INFO_BASIC);
    return info.addr;
}

/* Every chunk as the library finds it: the same bytes, and none that it does not have. Returns how many there are. */
static int compare_chunks(const layout_case *c, hid_t set, const fd_h5_bytes *bytes, const fd_h5_object *o,
                          const fd_h5_chunk *chunks, int64_t n) {
    hsize_t whole = 4;
    int there = 0;
    bool filtered = o->layout.filters.any;
    for (int i = 0; i < c->rank; i++) whole *= o->layout.chunk[i];
    char *mine = malloc(2 * whole + 64), *theirs = malloc(2 * whole + 64);
    H5E_auto2_t print;
    void *data;
    H5Eget_auto2(H5E_DEFAULT, &print, &data);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    for (int64_t k = 0; k < n; k++) {
        hsize_t offset[3] = {0}, at = (hsize_t)k;
        for (int i = c->rank - 1; i >= 0; i--) {
            hsize_t along = (o->shape.dim[i] + o->layout.chunk[i] - 1) / o->layout.chunk[i];
            offset[i] = at % along * o->layout.chunk[i];
            at /= along;
        }
        uint32_t mask = 0;
        hsize_t size = whole;
        bool found = c->chunk[0] ? H5Dget_chunk_storage_size(set, offset, &size) >= 0 && size <= 2 * whole + 64 &&
                                       H5Dread_chunk(set, H5P_DEFAULT, offset, &mask, theirs) >= 0
                                 : H5Dget_offset(set) != HADDR_UNDEF &&
                                       H5Dread(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, theirs) >= 0;
        cr_assert_eq(found, chunks[k].address != FD_H5_NOWHERE, "%s: chunk %lld", c->name, (long long)k);
        if (!found) continue;
        there++;
        if (filtered)
            cr_assert(chunks[k].bytes == size && chunks[k].mask == mask, "%s: chunk %lld", c->name, (long long)k);
        cr_assert(fd_h5_bytes_read(bytes, chunks[k].address, size, mine) && memcmp(mine, theirs, size) == 0,
                  "%s: chunk %lld", c->name, (long long)k);
    }
    H5Eset_auto2(H5E_DEFAULT, print, data);
    free(mine);
    free(theirs);
    return there;
}

Test(h5_places, every_chunk_lies_where_the_library_finds_it) {
    const char *path = fixture_path("places.h5");
    for (size_t i = 0; i < N_FILTER * sizeof cases / sizeof *cases; i++) {
        const layout_case *c = &cases[i / N_FILTER];
        int f = (int)(i % N_FILTER);
        if (f > 0 && (c->chunk[0] == 0 || (c->dim[0] > 100000 && !c->sparse))) continue; /* 150,000 deflated: 10 s */
        hid_t file, set = write_case(path, c, f, &file);
        struct stat there;
        fd_h5_bytes bytes = {open(path, O_RDONLY), NULL, 0};
        fstat(bytes.fd, &there);
        bytes.size = (uint64_t)there.st_size;
        fd_h5_object o;
        cr_expect(fd_h5_plain_file(&bytes), "%s", c->name);
        cr_assert(fd_h5_object_read(&bytes, &(fd_h5_nearby){0}, header_of(set), &o), "%s: not understood", c->name);
        /* filtered ones have lengths of their own, which an implicit index cannot have */
        fd_h5_index index = f > 0 && c->index == FD_H5_IMPLICIT ? FD_H5_FIXED_ARRAY : c->index;
        cr_expect(o.layout.index == index && o.element == FD_F32 && o.shape.rank == c->rank, "%s, %s: index %d",
                  c->name, filters[f].name, o.layout.index);
        cr_expect(o.layout.filters.any == (f > 0) && o.layout.readable, "%s, %s", c->name, filters[f].name);
        int64_t n = fd_h5_chunk_count(&o.shape, &o.layout, 1 << 30);
        fd_h5_chunk *chunks = malloc((size_t)n * sizeof *chunks);
        cr_assert(fd_h5_find_chunks(&bytes, &o.shape, &o.layout, chunks), "%s, %s: chunks not found", c->name,
                  filters[f].name);
        int found = compare_chunks(c, set, &bytes, &o, chunks, n);
        cr_expect(c->sparse ? found < n && (found > 0 || !c->chunk[0]) : found > 0, "%s, %s: %d of %lld", c->name,
                  filters[f].name, found, (long long)n);
        free(chunks);
        close(bytes.fd);
        H5Dclose(set);
        H5Fclose(file);
    }
    unlink(path);
}

/* Reads the dataset "x" of a case; the file stays open for reading. */
static fd_h5_bytes open_case(const char *path, const layout_case *c, fd_h5_object *o) {
    hid_t file, set = write_case(path, c, 0, &file);
    struct stat there;
    fd_h5_bytes bytes = {open(path, O_RDONLY), NULL, 0};
    fstat(bytes.fd, &there);
    bytes.size = (uint64_t)there.st_size;
    cr_assert(fd_h5_object_read(&bytes, &(fd_h5_nearby){0}, header_of(set), o), "%s: not understood", c->name);
    H5Dclose(set);
    H5Fclose(file);
    return bytes;
}

/* Limits are a file's word too: a shape beyond them is refused, and wide ones take no time (found by tests/fuzz,
 * which gets past checksums). */
Test(h5_places, limits_of_a_shape_may_be_anything) {
    const char *path = fixture_path("limits.h5");
    fd_h5_chunk chunks[160], sound[160];
    fd_h5_object o;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        if (cases[k].index != FD_H5_EXTENSIBLE_ARRAY && cases[k].index != FD_H5_IMPLICIT) continue;
        if (cases[k].dim[0] > 40) continue; /* more chunks than there is room for here */
        fd_h5_bytes bytes = open_case(path, &cases[k], &o);
        for (o.layout.max[1] = 0; o.layout.max[1] < o.shape.dim[1]; o.layout.max[1]++)
            cr_expect_not(fd_h5_find_chunks(&bytes, &o.shape, &o.layout, chunks), "%s: a limit of %lu", cases[k].name,
                          (unsigned long)o.layout.max[1]);
        close(bytes.fd);
    }
    const layout_case wide = {"implicit", true, 2, {9, 33}, {2, 10}, {12, 50}, FD_H5_IMPLICIT, .early = true};
    fd_h5_bytes bytes = open_case(path, &wide, &o);
    cr_assert(fd_h5_find_chunks(&bytes, &o.shape, &o.layout, sound));
    o.layout.max[0] = (hsize_t)1 << 38; /* chunks that the file has no room for, and that nobody asks for */
    cr_assert(fd_h5_find_chunks(&bytes, &o.shape, &o.layout, chunks));
    cr_expect_arr_eq(chunks, sound, sizeof *sound * (size_t)fd_h5_chunk_count(&o.shape, &o.layout, 160));
    o.layout.max[1] = (hsize_t)1 << 38; /* the second row of chunks would begin beyond the file */
    cr_expect_not(fd_h5_find_chunks(&bytes, &o.shape, &o.layout, chunks));
    close(bytes.fd);
    unlink(path);
}

/* Every bit of a small file turned over: a checksum, a bound or the library's refusal; never a read outside it. */
Test(h5_places, damaged_bytes_are_refused_or_read_inside_the_file) {
    static const int of[] = {3, 7, 12, 14, 17, 19, 21};
    const char *path = fixture_path("flipped.h5");
    for (size_t k = 0; k < 2 * sizeof of / sizeof *of; k++) {
        layout_case c = cases[of[k / 2]];
        if (c.dim[0] > 400) c.dim[0] = 400;
        hid_t file, set = write_case(path, &c, k % 2 ? N_FILTER - 1 : 0, &file);
        uint64_t header = header_of(set), random = 1;
        H5Dclose(set);
        H5Fclose(file);
        struct stat there;
        int fd = open(path, O_RDONLY);
        fstat(fd, &there);
        uint8_t *data = malloc((size_t)there.st_size);
        cr_assert_eq(read(fd, data, (size_t)there.st_size), there.st_size);
        close(fd);
        fd_h5_bytes bytes = {-1, data, (uint64_t)there.st_size};
        int refused = 0;
        for (int round = 0; round < 10000; round++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            uint64_t at = (random >> 20) % bytes.size, bit = random >> 61;
            if (at > 20000) at %= 20000; /* the metadata is at the front */
            if (at >= bytes.size) continue;
            data[at] ^= (uint8_t)(1u << bit);
            fd_h5_object o;
            bool ok = fd_h5_object_read(&bytes, &(fd_h5_nearby){0}, header, &o);
            int64_t n = ok ? fd_h5_chunk_count(&o.shape, &o.layout, 1 << 20) : -1;
            fd_h5_chunk *chunks = n >= 0 ? malloc((size_t)n * sizeof *chunks + 1) : NULL;
            if (chunks && fd_h5_find_chunks(&bytes, &o.shape, &o.layout, chunks))
                for (int64_t i = 0; i < n; i++)
                    cr_assert(chunks[i].address == FD_H5_NOWHERE ||
                                  (chunks[i].address < bytes.size && chunks[i].bytes <= bytes.size - chunks[i].address),
                              "%s: byte %lu", c.name, at);
            else
                refused++;
            free(chunks);
            data[at] ^= (uint8_t)(1u << bit);
        }
        cr_expect_gt(refused, 10, "%s", c.name);
        free(data);
    }
    unlink(path);
}

Test(h5_places, a_cut_block_is_not_whole) {
    uint8_t block[44];
    for (int i = 0; i < 40; i++) block[i] = (uint8_t)i;
    uint32_t sum = fd_h5_checksum(block, 40);
    memcpy(block + 40, &sum, 4);
    cr_expect(fd_h5_block_is_whole(block, 44));
    block[7] ^= 1;
    cr_expect_not(fd_h5_block_is_whole(block, 44));
    cr_expect_not(fd_h5_block_is_whole(block, 3));
}
