/* make_loud FOLDER MODEL.gguf: files of every format in which every text speaks to the terminal: loud.h5 and other.h5 (one element
 * differs), loud.npz, loud.safetensors, loud.npy's name, loud.gguf. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_writer/gguf_writer.h"
#include "dumpers/hdf5/h5.h"
#include "dumpers/store/schema.h"

/* A title, colours by ESC and by C1 (as UTF-8 and raw), an override, an isolate, DEL, CR, a byte that is none, and half
 * a character. */
#define LOUD                                                                                                           \
    "\x1b]0;t\x07\x1b[31m\xc2\x9b"                                                                                     \
    "31m\x9b"                                                                                                          \
    "5m\xe2\x80\xae\xe2\x81\xa6\x7f\r\xff\xc3"

static const char *folder;

static const char *path_of(const char *name, char out[1024]) {
    snprintf(out, 1024, "%s/%s", folder, name);
    return out;
}

static void make_trace(const char *name, float last) {
    char path[1024];
    hid_t file = H5Fcreate(path_of(name, path), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
    fd_h5_put_string(file, "schema", "firstdiff-trace");
    fd_h5_put_int(file, "version", 1);
    for (size_t i = 0; i < fd_info_field_count; i++) {
        char text[64];
        snprintf(text, sizeof text, "%.8s" LOUD, fd_info_fields[i].name);
        if (strcmp(fd_info_fields[i].name, "names") != 0) fd_h5_put_string(file, fd_info_fields[i].name, text);
    }
    fd_h5_put_string(file, "prompt", "prompt " LOUD);
    hsize_t one[1] = {2}, two[2] = {2, 3};
    int32_t tokens[2] = {1, 2};
    float values[6] = {1, 2, 3, 4, 5, last};
    hid_t space = H5Screate_simple(1, one, NULL),
          set = H5Dcreate2(file, "tokens", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens);
    H5Dclose(set);
    H5Sclose(space);
    hid_t group = H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    space = H5Screate_simple(2, two, NULL);
    static const char *const names[] = {"blk.0.q" LOUD, "output" LOUD};
    for (int i = 0; i < 2; i++) {
        set = H5Dcreate2(group, names[i], H5T_IEEE_F32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
        H5Dwrite(set, H5T_NATIVE_FLOAT, H5S_ALL, H5S_ALL, H5P_DEFAULT, values);
        fd_h5_put_string(set, "op", "mul" LOUD);
        fd_h5_put_int(set, "seq", i);
        H5Dclose(set);
    }
    H5Sclose(space);
    H5Gclose(group);
    H5Fclose(file);
}

static void put(FILE *f, uint64_t value, int n) {
    for (int i = 0; i < n; i++) fputc((int)(value >> (8 * i) & 255), f);
}

/* One stored member, a .npy of six floats. */
static void make_npz(const char *file, const char *name) {
    static const char header[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    uint8_t member[128 + 24] = "\x93NUMPY\x01";
    char path[1024];
    member[8] = 118;
    memset(member + 10, ' ', 118);
    memcpy(member + 10, header, sizeof header - 1);
    member[127] = '\n';
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < sizeof member; i++) {
        crc ^= member[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    FILE *f = fopen(path_of(file, path), "wb");
    for (int central = 0; central < 2; central++) {
        put(f, central ? 0x02014b50 : 0x04034b50, 4);
        if (central) put(f, 20, 2);
        put(f, 20, 2), put(f, 0, 8), put(f, ~crc, 4), put(f, sizeof member, 4), put(f, sizeof member, 4);
        put(f, strlen(name), 2), put(f, 0, 2);
        if (central) put(f, 0, 2), put(f, 0, 2), put(f, 0, 2), put(f, 0, 4), put(f, 0, 4);
        fwrite(name, 1, strlen(name), f);
        if (!central) fwrite(member, 1, sizeof member, f);
    }
    uint64_t directory = 30 + strlen(name) + sizeof member;
    put(f, 0x06054b50, 4), put(f, 0, 4), put(f, 1, 2), put(f, 1, 2), put(f, 46 + strlen(name), 4);
    put(f, directory, 4), put(f, 0, 2);
    fclose(f);
}

/* JSON is UTF-8, so no raw bytes; its escapes name the rest. */
static const char loud[] =
    "{\"x\\u001b[31m\\u009b5m\\u202e\xc2\x9b\xe2\x81\xa6\": {\"dtype\": \"F32\", \"shape\": [2, 3], "
    "\"data_offsets\": [0, 24]}}";
static const char plain[] = "{\"x\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]}}";

static void make_safetensors(const char *file, const char *header, size_t size) {
    char path[1024];
    FILE *f = fopen(path_of(file, path), "wb");
    put(f, size, 8);
    fwrite(header, 1, size, f);
    for (int i = 0; i < 24; i++) fputc(0, f);
    fclose(f);
}

/* The model with loud texts in the place of its own, where the file's format lets a text be anything. */
static fd_code make_gguf(const char *model, fd_error *err) {
    static const char *const texts[] = {"general.name", "llama.rope.scaling.type", "general.description"};
    fd_gguf *in;
    fd_gguf_writer *out;
    char path[1024];
    FD_TRY(fd_gguf_open(model, &in, err));
    FD_TRY(fd_gguf_writer_new(&out, err));
    for (uint64_t i = 0; i < fd_gguf_n_kv(in); i++) {
        const fd_gguf_kv *kv = fd_gguf_kv_at(in, i);
        bool ours = false;
        for (size_t k = 0; k < sizeof texts / sizeof *texts; k++)
            ours = ours || (kv->key.size == strlen(texts[k]) && memcmp(kv->key.data, texts[k], kv->key.size) == 0);
        if (!ours) FD_TRY(fd_gguf_put_kv(out, kv, err));
    }
    for (size_t k = 0; k < sizeof texts / sizeof *texts; k++) FD_TRY(fd_gguf_put_string(out, texts[k], "x" LOUD, err));
    FD_TRY(fd_gguf_write(out, path_of("loud.gguf", path), err));
    fd_gguf_writer_free(out);
    fd_gguf_close(in);
    return FD_OK;
}

int main(int argc, char **argv) {
    fd_error err = {0};
    if (argc < 3) return 2;
    folder = argv[1];
    make_trace("loud.h5", 6);
    make_trace("other.h5", 7);
    make_npz("loud.npz", "x" LOUD ".npy");
    make_npz("plain.npz", "x.npy");
    make_safetensors("plain.safetensors", plain, sizeof plain - 1);
    make_safetensors("loud.safetensors", loud, sizeof loud - 1);
    if (make_gguf(argv[2], &err) == FD_OK) return 0;
    fprintf(stderr, "%s\n", err.message);
    return 1;
}
