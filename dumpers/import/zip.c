#include "dumpers/import/zip.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/fuzzed.h"
#include "base/limits.h"
#include "dumpers/hdf5/inflate.h"

enum {
    END_BYTES = 22,     /* end of central directory, without its comment */
    END64_BYTES = 56,   /* zip64's */
    LOCATOR_BYTES = 20, /* where zip64's is */
    ENTRY_BYTES = 46,   /* of the central directory, without names */
    LOCAL_BYTES = 30,   /* local header, without names */
    MAX_NAME = 1024,
    LARGE = 64 << 20, /* bytes; what is smaller may be all zeros */
};

typedef struct entry {
    char *name;
    uint64_t packed, bytes, header; /* offset of the local header */
    uint64_t data;                  /* offset of the contents */
    uint32_t crc;
    uint16_t method, flags;
} entry;

struct fd_zip {
    char *name;
    const uint8_t *data;
    size_t size;
    entry *entries;
    size_t n;
};

static uint64_t number(const uint8_t *at, size_t bytes) {
    uint64_t value = 0;
    for (size_t i = 0; i < bytes; i++) value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static bool inside(const fd_zip *zip, uint64_t at, uint64_t bytes) {
    return at <= zip->size && bytes <= zip->size - at;
}

typedef struct directory {
    uint64_t at, bytes, count;
} directory;

/* Looks for the end record from the back: a comment of up to 64 KiB may follow it. */
static fd_code find_directory(const fd_zip *zip, directory *out, fd_error *err) {
    size_t at = 0, tried;
    bool found = false;
    for (tried = 0; !found && zip->size >= END_BYTES + tried && tried <= UINT16_MAX; tried++) {
        at = zip->size - END_BYTES - tried;
        found = number(zip->data + at, 4) == 0x06054b50 && number(zip->data + at + 20, 2) == tried;
    }
    if (!found) return fd_fail(err, FD_ERR_INPUT, "%s: not a zip archive, or cut short: no end record", zip->name);
    const uint8_t *end = zip->data + at;
    *out = (directory){number(end + 16, 4), number(end + 12, 4), number(end + 10, 2)};
    if (out->at == UINT32_MAX || out->bytes == UINT32_MAX || out->count == UINT16_MAX) {
        if (at < LOCATOR_BYTES || number(end - LOCATOR_BYTES, 4) != 0x07064b50)
            return fd_fail(err, FD_ERR_INPUT, "%s: 64-bit zip without its locator", zip->name);
        uint64_t end64 = number(end - LOCATOR_BYTES + 8, 8);
        if (!inside(zip, end64, END64_BYTES) || number(zip->data + end64, 4) != 0x06064b50)
            return fd_fail(err, FD_ERR_INPUT, "%s: 64-bit zip without its end record", zip->name);
        *out = (directory){number(zip->data + end64 + 48, 8), number(zip->data + end64 + 40, 8),
                           number(zip->data + end64 + 32, 8)};
    }
    if (inside(zip, out->at, out->bytes) && out->count > (uint64_t)fd_limit_of(FD_LIMIT_MEMBERS))
        return fd_limit_exceeded(err, FD_LIMIT_MEMBERS, "%s: a directory of %llu members", zip->name,
                                 (unsigned long long)out->count);
    if (!inside(zip, out->at, out->bytes) || out->count > out->bytes / ENTRY_BYTES)
        return fd_fail(err, FD_ERR_INPUT, "%s: directory of %llu entries, %llu bytes at %llu in a file of %zu",
                       zip->name, (unsigned long long)out->count, (unsigned long long)out->bytes,
                       (unsigned long long)out->at, zip->size);
    return FD_OK;
}

/* The 64-bit values of a zip64 extra field, in the order of the 32-bit ones that are all ones. */
static bool take_zip64(const uint8_t *extra, size_t size, entry *e) {
    uint64_t *const wide[] = {&e->bytes, &e->packed, &e->header};
    bool needed = e->bytes == UINT32_MAX || e->packed == UINT32_MAX || e->header == UINT32_MAX;
    if (!needed) return true;
    for (size_t at = 0; size - at >= 4;) {
        size_t id = number(extra + at, 2), length = number(extra + at + 2, 2);
        at += 4;
        if (length > size - at) return false;
        if (id == 1) {
            size_t from = at;
            for (size_t i = 0; i < 3; i++) {
                if (*wide[i] != UINT32_MAX) continue;
                if (at + length - from < 8) return false;
                *wide[i] = number(extra + from, 8);
                from += 8;
            }
            return true;
        }
        at += length;
    }
    return false;
}

static bool safe_name(const char *name) {
    if (name[0] == '\0' || strchr(name, '\\')) return false;
    for (const char *part = name; part; part = strchr(part, '/')) {
        if (*part == '/') part++;
        if (strncmp(part, "..", 2) == 0 && (part[2] == '/' || part[2] == '\0')) return false;
    }
    return true;
}

/* Tensors of an ONNX graph are called /model/layers.0/…, and numpy.savez takes that as it is: no entry is ever unpacked to a path, so the
 * slash in front is left out. */
static fd_code take_name(const fd_zip *zip, const uint8_t *at, size_t length, entry *e, fd_error *err) {
    if (length > MAX_NAME || memchr(at, 0, length))
        return fd_fail(err, FD_ERR_INPUT, "%s: an entry's name has %zu bytes or a zero byte, expected at most %d",
                       zip->name, length, MAX_NAME);
    for (; length > 0 && *at == '/'; at++) length--;
    e->name = strndup((const char *)at, length);
    if (!e->name) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", zip->name);
    if (!safe_name(e->name))
        return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\": a name that leads out of the archive", zip->name, e->name);
    return FD_OK;
}

static fd_code check_entry(const fd_zip *zip, entry *e, fd_error *err) {
    if (e->flags & 1) return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\": encrypted", zip->name, e->name);
    if (e->method != 0 && e->method != 8)
        return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\": compression method %u, expected 0 (stored) or 8 (deflate)",
                       zip->name, e->name, e->method);
    if (!inside(zip, e->header, LOCAL_BYTES) || number(zip->data + e->header, 4) != 0x04034b50)
        return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\": no header at %llu", zip->name, e->name,
                       (unsigned long long)e->header);
    const uint8_t *local = zip->data + e->header;
    e->data = e->header + LOCAL_BYTES + number(local + 26, 2) + number(local + 28, 2);
    if (!inside(zip, e->data, e->packed))
        return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\": %llu bytes at %llu in a file of %zu: cut short", zip->name,
                       e->name, (unsigned long long)e->packed, (unsigned long long)e->data, zip->size);
    bool lies = e->method == 0 ? e->bytes != e->packed : e->bytes / FD_DEFLATE_LIMIT > e->packed;
    if (!lies && e->method == 8 && e->bytes > LARGE && e->bytes / (uint64_t)fd_limit_of(FD_LIMIT_INFLATION) > e->packed)
        return fd_limit_exceeded(err, FD_LIMIT_INFLATION, "%s: entry \"%s\": %llu bytes become %llu", zip->name,
                                 e->name, (unsigned long long)e->packed, (unsigned long long)e->bytes);
    if (!lies && e->method == 8 && e->bytes > (uint64_t)fd_limit_of(FD_LIMIT_TENSOR_BYTES))
        return fd_limit_exceeded(err, FD_LIMIT_TENSOR_BYTES, "%s: entry \"%s\": %llu bytes", zip->name, e->name,
                                 (unsigned long long)e->bytes);
    if (lies)
        return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\": claims %llu bytes from %llu in the archive", zip->name,
                       e->name, (unsigned long long)e->bytes, (unsigned long long)e->packed);
    return FD_OK;
}

static fd_code read_entries(fd_zip *zip, const directory *dir, fd_error *err) {
    uint64_t at = dir->at, end = dir->at + dir->bytes;
    zip->entries = calloc(dir->count + 1, sizeof *zip->entries);
    if (!zip->entries) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", zip->name);
    for (; zip->n < dir->count; zip->n++) {
        const uint8_t *from = zip->data + at;
        if (end - at < ENTRY_BYTES || number(from, 4) != 0x02014b50)
            return fd_fail(err, FD_ERR_INPUT, "%s: entry %zu of the directory is damaged", zip->name, zip->n);
        uint64_t name = number(from + 28, 2), extra = number(from + 30, 2), comment = number(from + 32, 2);
        if (end - at - ENTRY_BYTES < name + extra + comment)
            return fd_fail(err, FD_ERR_INPUT, "%s: entry %zu of the directory is cut short", zip->name, zip->n);
        entry *e = &zip->entries[zip->n];
        *e = (entry){.packed = number(from + 20, 4),
                     .bytes = number(from + 24, 4),
                     .header = number(from + 42, 4),
                     .crc = (uint32_t)number(from + 16, 4),
                     .method = (uint16_t)number(from + 10, 2),
                     .flags = (uint16_t)number(from + 8, 2)};
        fd_code code = take_name(zip, from + ENTRY_BYTES, name, e, err);
        if (code == FD_OK && !take_zip64(from + ENTRY_BYTES + name, extra, e))
            code = fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\": 64-bit sizes missing", zip->name, e->name);
        if (code == FD_OK) code = check_entry(zip, e, err);
        if (code != FD_OK) {
            zip->n++; /* its name is freed with the rest */
            return code;
        }
        at += ENTRY_BYTES + name + extra + comment;
    }
    return FD_OK;
}

static int by_place(const void *a, const void *b) {
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    return x->header < y->header ? -1 : x->header > y->header;
}

static int by_name(const void *a, const void *b) {
    return strcmp((*(entry *const *)a)->name, (*(entry *const *)b)->name);
}

static fd_code check_apart(const fd_zip *zip, fd_error *err) {
    entry **sorted = malloc((zip->n + 1) * sizeof *sorted);
    if (!sorted) return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", zip->name);
    fd_code code = FD_OK;
    for (size_t i = 0; i < zip->n; i++) sorted[i] = &zip->entries[i];
    qsort(sorted, zip->n, sizeof *sorted, by_place);
    for (size_t i = 1; code == FD_OK && i < zip->n; i++)
        if (sorted[i - 1]->data + sorted[i - 1]->packed > sorted[i]->header)
            code = fd_fail(err, FD_ERR_INPUT, "%s: entries \"%s\" and \"%s\" overlap", zip->name, sorted[i - 1]->name,
                           sorted[i]->name);
    qsort(sorted, zip->n, sizeof *sorted, by_name);
    for (size_t i = 1; code == FD_OK && i < zip->n; i++)
        if (by_name(&sorted[i - 1], &sorted[i]) == 0)
            code = fd_fail(err, FD_ERR_INPUT, "%s: two entries are named \"%s\"", zip->name, sorted[i]->name);
    free(sorted);
    return code;
}

/* Many entries that are small enough each. */
static fd_code check_sum(const fd_zip *zip, fd_error *err) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < zip->n; i++)
        if (zip->entries[i].method == 8) bytes += zip->entries[i].bytes; /* each at most 1032 times the file's size */
    if (bytes <= 4 * LARGE || bytes / (uint64_t)fd_limit_of(FD_LIMIT_INFLATION) <= zip->size) return FD_OK;
    return fd_limit_exceeded(err, FD_LIMIT_INFLATION, "%s: %zu bytes become %llu", zip->name, zip->size,
                             (unsigned long long)bytes);
}

fd_code fd_zip_open(const char *name, const void *data, size_t size, fd_zip **out, fd_error *err) {
    *out = NULL;
    fd_zip *zip = calloc(1, sizeof *zip);
    if (!zip || !(zip->name = strdup(name))) {
        free(zip);
        return fd_fail(err, FD_ERR_MEMORY, "%s: out of memory", name);
    }
    zip->data = data;
    zip->size = size;
    directory dir = {0};
    fd_code code = find_directory(zip, &dir, err);
    if (code == FD_OK) code = read_entries(zip, &dir, err);
    if (code == FD_OK) code = check_apart(zip, err);
    if (code == FD_OK) code = check_sum(zip, err);
    if (code == FD_OK)
        *out = zip;
    else
        fd_zip_close(zip);
    return code;
}

void fd_zip_close(fd_zip *zip) {
    if (!zip) return;
    for (size_t i = 0; i < zip->n; i++) free(zip->entries[i].name);
    free(zip->entries);
    free(zip->name);
    free(zip);
}

size_t fd_zip_count(const fd_zip *zip) {
    return zip->n;
}

const char *fd_zip_name(const fd_zip *zip, size_t i) {
    return zip->entries[i].name;
}

uint64_t fd_zip_bytes(const fd_zip *zip, size_t i) {
    return zip->entries[i].bytes;
}

fd_code fd_zip_extract(const fd_zip *zip, size_t i, const void **data, void **owned, fd_error *err) {
    const entry *e = &zip->entries[i];
    *owned = NULL;
    *data = zip->data + e->data;
    if (e->method == 8) {
        *owned = malloc(e->bytes + 1);
        if (!*owned)
            return fd_fail(err, FD_ERR_MEMORY, "%s: entry \"%s\": no memory for %llu bytes", zip->name, e->name,
                           (unsigned long long)e->bytes);
        if (!fd_inflate(FD_DEFLATED_BARE, zip->data + e->data, e->packed, *owned, e->bytes)) {
            free(*owned);
            *owned = NULL;
            return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\": does not inflate to the %llu bytes it claims",
                           zip->name, e->name, (unsigned long long)e->bytes);
        }
        *data = *owned;
    }
    if (FD_FUZZED || fd_crc(*data, e->bytes) == e->crc) return FD_OK;
    free(*owned);
    *owned = NULL;
    return fd_fail(err, FD_ERR_INPUT, "%s: entry \"%s\": wrong CRC, the bytes are damaged", zip->name, e->name);
}
