/* make_import_corpus DIR: one small good file of each foreign format for the fuzzers to start from, in DIR/FORMAT.
 * Maps are those of dumpers/import/maps. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <zlib.h>

static uint8_t npy[256], npz[1024], safetensors[256];

static size_t put(uint8_t *at, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) at[i] = (uint8_t)(i < 8 ? value >> (8 * i) : 0);
    return bytes;
}

static size_t make_npy(const char *header, size_t elements) {
    size_t n = strlen(header);
    memcpy(npy, "\x93NUMPY\1\0", 8);
    put(npy + 8, n, 2);
    memcpy(npy + 10, header, n);
    memset(npy + 10 + n, 0x3c, elements);
    return 10 + n + elements;
}

/* One entry "a.npy" with what `npy` holds, stored or deflated. */
static size_t make_npz(size_t bytes, int method) {
    uint8_t packed[512];
    z_stream s = {.next_in = npy, .avail_in = (uInt)bytes, .next_out = packed, .avail_out = sizeof packed};
    if (deflateInit2(&s, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) return 0;
    deflate(&s, Z_FINISH);
    size_t n = method ? s.total_out : bytes, at = 0, start;
    deflateEnd(&s);
    for (int directory = 0; directory < 2; directory++) {
        start = at;
        at += put(npz + at, directory ? 0x02014b50 : 0x04034b50, 4);
        if (directory) at += put(npz + at, 20, 2);
        at += put(npz + at, 20, 4);
        at += put(npz + at, (uint64_t)method, 2);
        at += put(npz + at, 0, 4);
        at += put(npz + at, crc32(crc32(0, NULL, 0), npy, (uInt)bytes), 4);
        at += put(npz + at, n, 4);
        at += put(npz + at, bytes, 4);
        at += put(npz + at, 5, 2);
        memset(npz + at, 0, 16);
        at += directory ? 16 : 2; /* extra; and comment, disk, attributes, offset of the first header, 0 */
        memcpy(npz + at, "a.npy", 5);
        at += 5;
        if (!directory) {
            memcpy(npz + at, method ? packed : npy, n);
            at += n;
        }
    }
    size_t length = at - start;
    at += put(npz + at, 0x06054b50, 4);
    at += put(npz + at, 0, 4);
    at += put(npz + at, 0x00010001, 4);
    at += put(npz + at, length, 4);
    at += put(npz + at, start, 4);
    return at + put(npz + at, 0, 2);
}

static size_t make_safetensors(const char *header, size_t elements) {
    size_t n = strlen(header);
    put(safetensors, n, 8);
    memcpy(safetensors + 8, header, n);
    memset(safetensors + 8 + n, 1, elements);
    return 8 + n + elements;
}

static int save(const char *folder, const char *format, const char *name, const void *data, size_t n) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, format);
    mkdir(path, 0777);
    snprintf(path, sizeof path, "%s/%s/%s", folder, format, name);
    FILE *file = fopen(path, "wb");
    size_t written = file ? fwrite(data, 1, n, file) : 0;
    return file && fclose(file) == 0 && written == n;
}

/* {"a": a tensor of torch.save} */
static const uint8_t pickle[] =
    "\x80\2}X\1\0\0\0actorch._utils\n_rebuild_tensor_v2\n((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
    "0X\3\0\0\0cpuK\6tQK\1K\2K\2\x86K\3K\1\x86\x89)tRs.";

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: make_import_corpus DIR\n"), 2;
    const char *d = argv[1];
    size_t n = make_npy("{'descr': '>f2', 'fortran_order': True, 'shape': (2, 3), }", 12);
    int ok = save(d, "npy", "half", npy, n);
    n = make_npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }", 12);
    ok = ok && save(d, "npy", "single", npy, n) && save(d, "npz", "deflated", npz, make_npz(n, 8)) &&
         save(d, "npz", "stored", npz, make_npz(n, 0));
    n = make_safetensors("{\"a\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                         "\"b\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[12,13]}}",
                         13);
    ok = ok && save(d, "safetensors", "two", safetensors, n) && save(d, "pickle", "one", pickle, sizeof pickle - 1);
    return ok ? 0 : (fprintf(stderr, "make_import_corpus: cannot write in %s\n", d), 2);
}
