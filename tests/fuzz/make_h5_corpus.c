/* Seeds for fuzz_h5: small datasets in every layout, each file behind the address of its dataset's object header.
 * Usage: fuzz_make_h5_corpus FOLDER */
#include <hdf5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "dumpers/hdf5/h5.h"

typedef struct seed {
    const char *name;
    bool latest;
    hsize_t chunk[2], max[2]; /* chunk 0: contiguous */
    bool filtered;            /* shuffled, deflated and checked */
} seed;

static const seed seeds[] = {
    {"contiguous", false, {0, 0}, {6, 4}, false},
    {"contiguous_v2", true, {0, 0}, {6, 4}, false},
    {"btree_1", false, {1, 4}, {H5S_UNLIMITED, 4}, false},
    {"single", true, {6, 4}, {6, 4}, false},
    {"fixed", true, {2, 3}, {6, 4}, false},
    {"extensible", true, {1, 4}, {H5S_UNLIMITED, 4}, false},
    {"btree_2", true, {2, 2}, {H5S_UNLIMITED, H5S_UNLIMITED}, false},
    {"btree_1_filtered", false, {3, 4}, {H5S_UNLIMITED, 4}, true},
    {"single_filtered", true, {6, 4}, {6, 4}, true},
    {"fixed_filtered", true, {2, 3}, {6, 4}, true},
    {"extensible_filtered", true, {1, 4}, {H5S_UNLIMITED, 4}, true},
    {"btree_2_filtered", true, {2, 2}, {H5S_UNLIMITED, H5S_UNLIMITED}, true},
};

static void write_table(hid_t file, bool chunked, bool filtered) {
    static const struct {
        int32_t first;
        char text[8];
        int32_t last;
    } rows[3] = {{1, "one", -1}, {2, "two", -2}, {3, "three", -3}};
    hsize_t n = 3, chunk = 2;
    hid_t text = H5Tcopy(H5T_C_S1), type = H5Tcreate(H5T_COMPOUND, sizeof *rows),
          create = H5Pcreate(H5P_DATASET_CREATE);
    H5Tset_size(text, 8);
    H5Tset_strpad(text, H5T_STR_NULLPAD);
    H5Tinsert(type, "first", 0, H5T_STD_I32LE);
    H5Tinsert(type, "text", 4, text);
    H5Tinsert(type, "last", 12, H5T_STD_I32LE);
    if (chunked) H5Pset_chunk(create, 1, &chunk);
    if (filtered) H5Pset_deflate(create, 1);
    hid_t space = H5Screate_simple(1, &n, NULL),
          set = H5Dcreate2(file, "steps", type, space, H5P_DEFAULT, create, H5P_DEFAULT);
    H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, rows);
    H5Dclose(set);
    H5Sclose(space);
    H5Pclose(create);
    H5Tclose(type);
    H5Tclose(text);
}

/* In the newer format more than eight links are in a heap. */
static void write_group(hid_t file, int n) {
    hid_t group = H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Lcreate_hard(file, "x", group, "x", H5P_DEFAULT, H5P_DEFAULT);
    for (int i = 0; i < n; i++) {
        char name[32];
        snprintf(name, sizeof name, "blk.%d.attn_norm", i);
        H5Lcreate_hard(file, "tokens", group, name, H5P_DEFAULT, H5P_DEFAULT);
    }
    H5Gclose(group);
}

static uint64_t write_file(const char *path, const seed *s) {
    static const float values[24] = {1, 2, 3};
    hsize_t dim[2] = {6, 4};
    hid_t access = H5Pcreate(H5P_FILE_ACCESS), create = H5Pcreate(H5P_DATASET_CREATE);
    if (s->latest) H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
    if (s->chunk[0]) H5Pset_chunk(create, 2, s->chunk);
    if (s->filtered) H5Pset_shuffle(create), H5Pset_deflate(create, 1), H5Pset_fletcher32(create);
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access), space = H5Screate_simple(2, dim, s->max);
    hid_t set = H5Dcreate2(file, "x", H5T_IEEE_F32LE, space, H5P_DEFAULT, create, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
    fd_h5_put_string(set, "dtype", "F32");
    fd_h5_put_int(set, "seq", 3);
    H5O_info_t info;
    memset(&info, 0, sizeof info);
    H5Oget_info2(set, &info, H5O_INFO_BASIC);
    uint64_t address = 0;
    memcpy(&address, &info.addr, sizeof address);
    H5Dclose(set);
    H5Sclose(space);
    hsize_t n = 3;
    space = H5Screate_simple(1, &n, NULL);
    H5Dclose(H5Dcreate2(file, "tokens", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    H5Sclose(space);
    write_table(file, s->chunk[0] > 0, s->filtered);
    write_group(file, s->latest ? 40 : 12);
    fd_h5_put_string(file, "dtype", "a text");
    H5Pclose(create);
    H5Pclose(access);
    H5Fclose(file);
    return address;
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        char path[512], part[600];
        snprintf(path, sizeof path, "%s/%s", argv[1], seeds[i].name);
        snprintf(part, sizeof part, "%s.part", path);
        uint64_t address = write_file(part, &seeds[i]);
        FILE *in = fopen(part, "rb"), *out = fopen(path, "wb");
        if (!in || !out || fwrite(&address, sizeof address, 1, out) != 1) return 1;
        for (int c; (c = getc(in)) != EOF;) putc(c, out);
        fclose(in);
        if (fclose(out) != 0) return 1;
        unlink(part);
    }
    return 0;
}
