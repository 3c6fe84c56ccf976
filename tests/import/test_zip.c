/* Zip archives: made here byte by byte, so that every lie can be told. */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "dumpers/import/zip.h"

typedef struct file {
    uint8_t bytes[8192];
    size_t size;
} file;

static void put(file *f, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) f->bytes[f->size++] = (uint8_t)(i < 8 ? value >> (8 * i) : 0);
}

static void put_bytes(file *f, const void *from, size_t n) {
    memcpy(f->bytes + f->size, from, n);
    f->size += n;
}

/* One entry and what its headers say. */
typedef struct spec {
    const char *name;
    const void *data; /* as packed */
    uint64_t packed, bytes;
    uint32_t crc;
    int method, flags;
    int64_t at; /* offset of its local header in the directory; -1: the true one */
    bool wide;  /* sizes in a zip64 field */
} spec;

static void put_common(file *f, const spec *s) {
    put(f, 20, 2); /* version needed */
    put(f, (uint64_t)s->flags, 2);
    put(f, (uint64_t)s->method, 2);
    put(f, 0, 4); /* time, date */
    put(f, s->crc, 4);
    put(f, s->wide ? UINT32_MAX : s->packed, 4);
    put(f, s->wide ? UINT32_MAX : s->bytes, 4);
    put(f, strlen(s->name), 2);
}

static void put_wide(file *f, const spec *s) {
    put(f, 1, 2);
    put(f, 16, 2);
    put(f, s->bytes, 8);
    put(f, s->packed, 8);
}

static file make(const spec *specs, size_t n, size_t true_packed) {
    file f = {0};
    uint64_t places[8], start;
    for (size_t i = 0; i < n; i++) {
        places[i] = f.size;
        put(&f, 0x04034b50, 4);
        put_common(&f, &specs[i]);
        put(&f, specs[i].wide ? 20 : 0, 2);
        put_bytes(&f, specs[i].name, strlen(specs[i].name));
        if (specs[i].wide) put_wide(&f, &specs[i]);
        put_bytes(&f, specs[i].data, true_packed);
    }
    start = f.size;
    for (size_t i = 0; i < n; i++) {
        put(&f, 0x02014b50, 4);
        put(&f, 20, 2);
        put_common(&f, &specs[i]);
        put(&f, specs[i].wide ? 20 : 0, 2);
        put(&f, 0, 2 + 2 + 2 + 4); /* comment, disk, attributes */
        put(&f, specs[i].at < 0 ? places[i] : (uint64_t)specs[i].at, 4);
        put_bytes(&f, specs[i].name, strlen(specs[i].name));
        if (specs[i].wide) put_wide(&f, &specs[i]);
    }
    uint64_t bytes = f.size - start;
    put(&f, 0x06054b50, 4);
    put(&f, 0, 4);
    put(&f, n, 2);
    put(&f, n, 2);
    put(&f, bytes, 4);
    put(&f, start, 4);
    put(&f, 0, 2);
    return f;
}

enum { N = 1000 };
static uint8_t plain[N], packed[2000];

static size_t deflate_plain(void) {
    for (int i = 0; i < N; i++) plain[i] = (uint8_t)(i % 7);
    z_stream s = {0};
    cr_assert_eq(deflateInit2(&s, 9, Z_DEFLATED, -MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    s.next_in = plain;
    s.avail_in = N;
    s.next_out = packed;
    s.avail_out = sizeof packed;
    cr_assert_eq(deflate(&s, Z_FINISH), Z_STREAM_END);
    size_t n = s.total_out;
    deflateEnd(&s);
    return n;
}

static uint32_t crc(void) {
    return (uint32_t)crc32(crc32(0, NULL, 0), plain, N);
}

/* The code of opening and extracting everything; the message in err. */
static fd_code whole(const file *f, fd_error *err) {
    fd_zip *zip;
    FD_TRY(fd_zip_open("x.npz", f->bytes, f->size, &zip, err));
    fd_code code = FD_OK;
    for (size_t i = 0; code == FD_OK && i < fd_zip_count(zip); i++) {
        const void *data;
        void *owned;
        code = fd_zip_extract(zip, i, &data, &owned, err);
        if (code == FD_OK && (fd_zip_bytes(zip, i) != N || memcmp(data, plain, N) != 0)) code = FD_STOP;
        free(owned);
    }
    fd_zip_close(zip);
    return code;
}

Test(zip, reads_stored_deflated_and_64_bit_entries) {
    size_t n = deflate_plain();
    for (int wide = 0; wide < 2; wide++)
        for (int method = 0; method <= 8; method += 8) {
            spec s = {"folder/a.npy", method ? packed : plain, method ? n : N, N, crc(), method, 0, -1, wide};
            file f = make(&s, 1, s.packed);
            fd_error err = {0};
            cr_assert_eq(whole(&f, &err), FD_OK, "method %d, wide %d: %s", method, wide, err.message);
        }
}

/* As numpy.savez writes the names of an ONNX graph. */
Test(zip, leaves_out_slashes_in_front) {
    const size_t n = deflate_plain();
    const spec s = {"//model/layers.0/a.npy", packed, n, N, crc(), 8, 0, -1, false};
    file f = make(&s, 1, n);
    fd_zip *zip;
    fd_error err = {0};
    cr_assert_eq(fd_zip_open("x.npz", f.bytes, f.size, &zip, &err), FD_OK, "%s", err.message);
    cr_expect_str_eq(fd_zip_name(zip, 0), "model/layers.0/a.npy");
    fd_zip_close(zip);
}

Test(zip, refuses) {
    size_t n = deflate_plain();
    const struct {
        const char *what;
        spec s;
        const char *message;
    } bad[] = {
        {"leads up", {"../a.npy", packed, n, N, crc(), 8, 0, -1, false}, "leads out"},
        {"leads up inside", {"a/../../b.npy", packed, n, N, crc(), 8, 0, -1, false}, "leads out"},
        {"absolute and up", {"/../a.npy", packed, n, N, crc(), 8, 0, -1, false}, "leads out"},
        {"a slash alone", {"/", packed, n, N, crc(), 8, 0, -1, false}, "leads out"},
        {"backslash", {"..\\a.npy", packed, n, N, crc(), 8, 0, -1, false}, "leads out"},
        {"encrypted", {"a.npy", packed, n, N, crc(), 8, 1, -1, false}, "encrypted"},
        {"another method", {"a.npy", packed, n, N, crc(), 14, 0, -1, false}, "method 14"},
        {"a bomb's size", {"a.npy", packed, n, 100000000, crc(), 8, 0, -1, false}, "claims"},
        {"16 GiB and more", {"a.npy", packed, n, UINT64_C(1) << 40, crc(), 8, 0, -1, true}, "claims"},
        {"more than it says", {"a.npy", packed, n, N - 1, crc(), 8, 0, -1, false}, "does not inflate"},
        {"less than it says", {"a.npy", packed, n, N + 1, crc(), 8, 0, -1, false}, "does not inflate"},
        {"deflate cut short", {"a.npy", packed, n - 1, N, crc(), 8, 0, -1, false}, "does not inflate"},
        {"a wrong CRC", {"a.npy", packed, n, N, crc() + 1, 8, 0, -1, false}, "wrong CRC"},
        {"stored with two sizes", {"a.npy", plain, N, N + 1, crc(), 0, 0, -1, false}, "claims"},
        {"beyond the end", {"a.npy", packed, 5000, N, crc(), 8, 0, -1, false}, "cut short"},
        {"a header elsewhere", {"a.npy", packed, n, N, crc(), 8, 0, 5, false}, "no header"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        file f = make(&bad[i].s, 1, bad[i].s.method ? n : N);
        fd_error err = {0};
        cr_assert_eq(whole(&f, &err), FD_ERR_INPUT, "%s", bad[i].what);
        cr_assert(strstr(err.message, bad[i].message), "%s: %s", bad[i].what, err.message);
    }
}

Test(zip, refuses_entries_that_overlap_and_names_given_twice) {
    size_t n = deflate_plain();
    spec twice[2] = {{"a.npy", packed, n, N, crc(), 8, 0, -1, false}, {"a.npy", packed, n, N, crc(), 8, 0, -1, false}};
    file f = make(twice, 2, n);
    fd_error err = {0};
    cr_assert_eq(whole(&f, &err), FD_ERR_INPUT);
    cr_assert(strstr(err.message, "two entries"), "%s", err.message);
    twice[1].name = "b.npy";
    f = make(twice, 2, n);
    cr_assert_eq(whole(&f, &err), FD_OK, "%s", err.message);
    twice[1].at = 0;
    f = make(twice, 2, n);
    cr_assert_eq(whole(&f, &err), FD_ERR_INPUT);
    cr_assert(strstr(err.message, "overlap"), "%s", err.message);
}

Test(zip, every_truncation_is_refused) {
    size_t n = deflate_plain();
    spec s = {"a.npy", packed, n, N, crc(), 8, 0, -1, false};
    file f = make(&s, 1, n);
    for (size_t keep = 0, size = f.size; keep < size; keep++) {
        fd_error err = {0};
        f.size = keep;
        cr_assert_eq(whole(&f, &err), FD_ERR_INPUT, "%zu bytes", keep);
    }
}
