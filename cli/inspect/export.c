/* firstdiff inspect --export: elements as .npy, .csv or a grey .png. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "cli/inspect/gather.h"
#include "cli/npy.h"
#include "cli/output.h"
#include "compare/report/line.h"

static int64_t row_of(const fd_gathered *of) {
    return of->rank ? of->shape[of->rank - 1] : 1;
}

static fd_code write_csv(const fd_gathered *of, const char *path, fd_error *err) {
    FILE *to;
    char text[40];
    FD_TRY(fd_cli_output_open(path, &to, err));
    for (int64_t i = 0; i < of->n; i++) {
        fd_value_text(of->data[i], text, sizeof text);
        fprintf(to, "%s%c", text, (i + 1) % row_of(of) ? ',' : '\n');
    }
    return fd_cli_output_close(to, path, err);
}

static void put_u32(uint8_t *to, uint32_t x) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(x >> (24 - 8 * i));
}

/* Length, type, bytes, CRC. */
static void put_chunk(FILE *to, const char *type, const uint8_t *bytes, uint32_t n) {
    uint8_t word[4];
    uLong crc = crc32(crc32(0, (const Bytef *)type, 4), bytes, n);
    put_u32(word, n);
    fwrite(word, 1, 4, to);
    fwrite(type, 1, 4, to);
    fwrite(bytes, 1, n, to);
    put_u32(word, (uint32_t)crc);
    fwrite(word, 1, 4, to);
}

/* From the smallest finite element, white, to the largest, black; what is none of them is white. */
static fd_code write_png(const fd_gathered *of, const char *path, fd_error *err) {
    int64_t wide = row_of(of), high = of->n / wide;
    double low = INFINITY, most = -INFINITY;
    if (wide > 1 << 14 || high > 1 << 14)
        return fd_fail(err, FD_ERR_INPUT, "%s: %lld x %lld elements, a picture has at most 16384 either way", path,
                       (long long)wide, (long long)high);
    for (int64_t i = 0; i < of->n; i++)
        if (isfinite(of->data[i])) low = fmin(low, of->data[i]), most = fmax(most, of->data[i]);
    uLongf size = compressBound((uLong)((wide + 1) * high));
    uint8_t *raw = malloc((size_t)((wide + 1) * high)), *packed = malloc(size), head[13] = {0};
    FILE *to;
    fd_code code = raw && packed ? fd_cli_output_open(path, &to, err) : fd_fail(err, FD_ERR_MEMORY, "out of memory");
    for (int64_t y = 0; code == FD_OK && y < high; y++) {
        raw[y * (wide + 1)] = 0; /* no filter */
        for (int64_t x = 0; x < wide; x++) {
            double value = of->data[y * wide + x], t = most > low ? (value - low) / (most - low) : 0;
            raw[y * (wide + 1) + 1 + x] = isfinite(value) ? (uint8_t)(255 - 255 * t) : 255;
        }
    }
    if (code == FD_OK) {
        compress2(packed, &size, raw, (uLong)((wide + 1) * high), 6);
        put_u32(head, (uint32_t)wide);
        put_u32(head + 4, (uint32_t)high);
        head[8] = 8; /* bits, grey */
        fwrite("\x89PNG\r\n\x1a\n", 1, 8, to);
        put_chunk(to, "IHDR", head, 13);
        put_chunk(to, "IDAT", packed, (uint32_t)size);
        put_chunk(to, "IEND", head, 0);
        code = fd_cli_output_close(to, path, err);
    }
    free(raw);
    free(packed);
    return code;
}

fd_code fd_inspect_export(const fd_gathered *of, const char *path, fd_error *err) {
    const char *ending = strrchr(path, '.');
    if (ending && strcmp(ending, ".csv") == 0) return write_csv(of, path, err);
    if (ending && strcmp(ending, ".png") == 0) return write_png(of, path, err);
    if (ending && strcmp(ending, ".npy") == 0) return fd_cli_write_npy(path, of->rank, of->shape, of->data, true, err);
    return fd_fail(err, FD_ERR_INPUT, "--export %s: expected a name that ends in .npy, .csv or .png", path);
}

void fd_inspect_histogram(const char *name, const fd_gathered *of) {
    enum { BINS = 24, WIDE = 50 };
    int64_t counts[BINS] = {0}, n_other = 0, most = 1;
    double low = INFINITY, high = -INFINITY;
    for (int64_t i = 0; i < of->n; i++)
        if (isfinite(of->data[i])) low = fmin(low, of->data[i]), high = fmax(high, of->data[i]);
    for (int64_t i = 0; i < of->n; i++) {
        double t = high > low ? (of->data[i] - low) / (high - low) : 0;
        int bin = t < 1 ? (int)(t * BINS) : BINS - 1;
        if (isfinite(of->data[i]))
            counts[bin]++;
        else
            n_other++;
    }
    for (int i = 0; i < BINS; i++)
        if (counts[i] > most) most = counts[i];
    printf("%s: %lld elements, %lld not finite\n", name, (long long)of->n, (long long)n_other);
    for (int i = 0; i < BINS && high >= low; i++) {
        int bar = (int)((double)counts[i] * WIDE / (double)most + 0.999);
        printf("  %12.5g  %-*.*s %lld\n", low + (high - low) * i / BINS, WIDE, bar,
               "##################################################", (long long)counts[i]);
    }
}
