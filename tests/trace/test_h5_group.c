/* Groups that no library would write: what their tables say is not believed. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "dumpers/hdf5/plain.h"
#include "fixture.h"

enum { ENTRIES = 50, LEAVES = 100, LONG_NAME = 1 << 20, HEADER = 0, TREE = 64, LEAF = 4096, HEAP = 8192, NAMES = 8224 };

static void put(uint8_t *file, size_t at, uint64_t value, size_t bytes) {
    memcpy(file + at, &value, bytes);
}

/* A group of LEAVES leaves, all the same, of n links, which begin `step` bytes apart in a heap of names that are one
 * text (of `length` As at the end of it). */
static uint8_t *group_of(size_t n_leaf, size_t n, size_t step, size_t length, size_t *size) {
    const size_t names = n * step + length + 1;
    uint8_t *file = calloc(*size = NAMES + names, 1);
    memset(file + NAMES, 'A', names - 1);
    put(file, HEADER, 1, 1); /* one message: the symbol table */
    put(file, HEADER + 8, 24, 4);
    put(file, HEADER + 16, 0x11, 2);
    put(file, HEADER + 18, 16, 2);
    put(file, HEADER + 24, TREE, 8);
    put(file, HEADER + 32, HEAP, 8);
    memcpy(file + TREE, "TREE", 4);
    put(file, TREE + 6, n_leaf, 2);
    for (size_t i = 0; i < n_leaf; i++) put(file, TREE + 24 + 16 * i + 8, LEAF, 8);
    memcpy(file + LEAF, "SNOD\1", 5);
    put(file, LEAF + 6, n, 2);
    for (size_t i = 0; i < n; i++) put(file, LEAF + 8 + 40 * i, i * step, 8);
    memcpy(file + HEAP, "HEAP", 4);
    put(file, HEAP + 8, names, 8);
    put(file, HEAP + 24, NAMES, 8);
    return file;
}

static fd_h5_link *links_of(const uint8_t *file, size_t size, size_t *n) {
    fd_h5_bytes bytes = {-1, file, size};
    static fd_h5_window window;
    window.n = 0;
    return fd_h5_group_links(&bytes, &window, HEADER, 1 << 20, n);
}

Test(h5_group, names_have_bytes_of_their_own) {
    size_t size, n;
    uint8_t *file =
        group_of(1, ENTRIES, 1, 1000, &size); /* fifty names of a thousand bytes each, in a thousand and fifty */
    fd_h5_link *links = links_of(file, size, &n);
    cr_assert(!links);
    free(file);
    file = group_of(1, 2, 40, 0, &size);
    links = links_of(file, size, &n);
    cr_assert(links && n == 2 && strlen(links[0].name) == 40 && strlen(links[1].name) == 80);
    free(links);
    free(file);
}

Test(h5_group, one_long_name_for_all_links_takes_no_memory) {
    size_t size, n;
    struct rusage before, after;
    uint8_t *file = group_of(LEAVES, ENTRIES, 0, LONG_NAME, &size);
    getrusage(RUSAGE_SELF, &before);
    cr_assert(!links_of(file, size, &n));
    getrusage(RUSAGE_SELF, &after);
    cr_expect_lt(after.ru_maxrss - before.ru_maxrss, 64 << 10, "%ld KiB for a file of %zu bytes",
                 after.ru_maxrss - before.ru_maxrss, size);
    free(file);
}

/* ---- heaps: groups of many links in the newer format ---- */

typedef struct heap_case {
    const char *name;
    int n, removed; /* links made, every so manieth of them taken away again */
    int length;     /* of the names, at most */
    bool ordered;   /* listed in order of creation, too */
} heap_case;

/* The group "g" of a new file; its bytes, to free. */
static uint8_t *write_heap(const char *path, const heap_case *c, uint64_t *header, size_t *size) {
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), create = H5Pcreate(H5P_GROUP_CREATE);
    H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    if (c->ordered) H5Pset_link_creation_order(create, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access),
          group = H5Gcreate2(file, "g", H5P_DEFAULT, create, H5P_DEFAULT);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < c->n; i++) {
            char name[512];
            int n = snprintf(name, sizeof name, "blk.%d.", i * 7919 % c->n), length = 8 + i * 31 % c->length;
            while (n < length) name[n++] = (char)('a' + i % 26);
            name[n] = '\0';
            if (!pass) H5Lcreate_hard(file, "/", group, name, H5P_DEFAULT, H5P_DEFAULT);
            if (pass && c->removed && i % c->removed == 0) H5Ldelete(group, name, H5P_DEFAULT);
        }
    H5O_info_t info;
    H5Oget_info2(group, &info, H5O_INFO_BASIC);
    *header = info.addr;
    H5Gclose(group);
    H5Fclose(file);
    H5Pclose(create);
    H5Pclose(access);
    FILE *in = fopen(path, "rb");
    fseek(in, 0, SEEK_END);
    *size = (size_t)ftell(in);
    uint8_t *data = malloc(*size);
    rewind(in);
    cr_assert_eq(fread(data, 1, *size, in), *size);
    fclose(in);
    return data;
}

Test(h5_group, links_of_a_heap_are_the_librarys) {
    static const heap_case cases[] = {
        {"one block", 12, 0, 10, false},      {"one indirect block", 300, 0, 60, false},
        {"in order", 300, 0, 60, true},       {"taken away", 3000, 3, 40, false},
        {"only a few left", 40, 2, 20, true}, {"indirect blocks below", 12000, 0, 400, false},
    };
    const char *path = fixture_path("heap.h5");
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint64_t header;
        size_t size, n, n_theirs;
        uint8_t *data = write_heap(path, &cases[k], &header, &size);
        fd_h5_bytes bytes = {-1, data, size};
        fd_h5_window window = {.n = 0};
        fd_h5_link *mine = fd_h5_group_links(&bytes, &window, header, 1 << 20, &n);
        hid_t file = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT), group = H5Gopen2(file, "g", H5P_DEFAULT);
        fd_h5_link *theirs = fd_h5_links(group, 1 << 20, &n_theirs);
        cr_assert(mine && theirs && n == n_theirs, "%s: %zu links, %zu", cases[k].name, n, n_theirs);
        for (size_t i = 0; i < n; i++)
            cr_assert(strcmp(mine[i].name, theirs[i].name) == 0 && mine[i].address == theirs[i].address, "%s: %s, %s",
                      cases[k].name, mine[i].name, theirs[i].name);
        free(mine);
        window.n = 0;
        mine = fd_h5_group_links(&bytes, &window, header, n - 1, &n);
        cr_expect_not(mine, "%s: more than the limit", cases[k].name);
        H5Gclose(group);
        H5Fclose(file);
        free(theirs);
        free(data);
    }
    remove(path);
}

/* Every byte of the metadata turned over, one after another: refused by a checksum, or nothing that counts. */
Test(h5_group, damaged_heaps_are_refused) {
    const heap_case c = {"damaged", 60, 0, 40, true};
    const char *path = fixture_path("damaged_heap.h5");
    uint64_t header;
    size_t size, n, n_sound, refused = 0;
    uint8_t *data = write_heap(path, &c, &header, &size);
    fd_h5_bytes bytes = {-1, data, size};
    fd_h5_window window = {.n = 0};
    fd_h5_link *sound = fd_h5_group_links(&bytes, &window, header, 1 << 10, &n_sound);
    cr_assert(sound && n_sound == 60);
    for (size_t at = 0; at < size; at++) {
        data[at] ^= 0x41;
        window.n = 0;
        fd_h5_link *links = fd_h5_group_links(&bytes, &window, header, 1 << 10, &n);
        if (!links) refused++;
        for (size_t i = 0; links && i < n; i++)
            cr_assert(n == n_sound && strcmp(links[i].name, sound[i].name) == 0, "byte %zu", at);
        free(links);
        data[at] ^= 0x41;
    }
    cr_expect_gt(refused, 60 * 11, "at least the records of the tree: %zu", refused);
    free(sound);
    free(data);
    remove(path);
}

Test(h5_group, a_tensor_has_few_names) {
    const char *path = fixture_path("names.h5");
    for (int more = 0; more < 2; more++) {
        fd_graph *graph = fixture_graph(fixture_small);
        fd_trace_options options = fd_trace_defaults(path);
        options.level = FD_TRACE_FULL;
        fixture_write(&options, graph, FD_NUMERICS_EXACT, 2, 1);
        fd_graph_free(graph);
        hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        const char *const dropped[] = {"graph", "fingerprints", "stats"};
        for (size_t i = 0; i < sizeof dropped / sizeof *dropped; i++)
            if (H5Lexists(file, dropped[i], H5P_DEFAULT) > 0) H5Ldelete(file, dropped[i], H5P_DEFAULT);
        for (int i = 0; i < 15 + more; i++) {
            char name[32];
            snprintf(name, sizeof name, "tensors/x%d", i);
            H5Lcreate_hard(file, "tensors/logits", H5L_SAME_LOC, name, H5P_DEFAULT, H5P_DEFAULT);
        }
        H5Fclose(file);
        fd_trace *trace;
        fd_error err = {0};
        fd_code code = fd_trace_open(path, &trace, &err);
        cr_expect_eq(code, more ? FD_ERR_INPUT : FD_OK, "%s", err.message);
        if (more) cr_expect(strstr(err.message, "--limit names=N"), "%s", err.message);
        if (code == FD_OK) fd_trace_close(trace);
    }
    remove(path);
}
