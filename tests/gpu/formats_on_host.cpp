/* The lanes' readers of every weight format (kernels/formats/), compiled for the host: what eight and 32 lanes decode from
 * a packed row is what model/gguf/quant.h makes of the file's. Rows of every length, random blocks with scales of every
 * kind. No device is needed; kernel_check runs the same readers inside the kernels.
 *
 *   formats_on_host        exit status 0, or 1 when a bit differs */
#include "tests/gpu/host_device.h"

#include "engine/pack_weight.h"
#include "kernels/formats/pair.cuh"

#include <stdio.h>
#include <string.h>

#include <vector>

static uint64_t state = 1;
static uint32_t random_bits() { /* SplitMix64 (Steele, Lea, Flood 2014) */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)((z ^ z >> 27) >> 16);
}

static bool same(float a, float b) {
    return isnan(a) ? isnan(b) : fd_bits32(a) == fd_bits32(b);
}

/* What lanes make of unit `at` of a packed row [64 · groups], each with P of a group's elements; fused: by decode_fused.
 * They come to a unit by its number or by moving the cursor, in turn. */
template <class Format, int P>
static void decode(const uint8_t *row, int64_t scale_offset, int at, bool fused, float *to) {
    for (int lane = 0; lane < 64 / P; lane++) {
        fd_cursor cursor = Format::begin(row, scale_offset, lane);
        if (at % 2 == 0) Format::advance(cursor, at);
        const typename Format::unit unit = Format::template load<FD_READ_AGAIN>(cursor, at % 2 == 0 ? 0 : at, lane);
        for (int group = 0; group < Format::groups; group++) {
            float w[P];
            if constexpr (Format::fused) {
                if (fused)
                    Format::decode_fused(unit, group, lane, fd_power_bits(23), Format::fused_bits, w);
                else
                    Format::decode(unit, group, lane, fd_power_bits(23), w);
            } else {
                Format::decode(unit, group, lane, fd_power_bits(23), w);
            }
            memcpy(to + group * 64 + lane * P, w, sizeof w);
        }
    }
}

/* A row in units; decode_fused may lose what its header says. */
template <int P>
static bool check(uint32_t dtype, int64_t n_col, const uint8_t *packed, const float *expected, bool quiet = false) {
    fd_error err = {};
    int64_t wrong = 0;
    const fd_code code = fd_with_format<P>(dtype, &err, [&](auto format) {
        using Format = decltype(format);
        float w[Format::groups * 64];
        for (int unit = 0; unit < Format::units_of(n_col); unit++)
            for (int fused = 0; fused <= (Format::fused ? 1 : 0); fused++) {
                decode<Format, P>(packed, fd_packed_scale_offset(dtype, n_col), unit, fused, w);
                for (int i = 0; i < Format::groups * 64; i++) {
                    const int64_t k = unit * Format::groups * 64 + i;
                    if (k >= n_col || same(w[i], expected[k])) continue;
                    const bool allowed = fused && (isinf(expected[k]) || (w[i] == 0 && expected[k] == 0));
                    if (!allowed && wrong++ == 0 && !quiet)
                        printf("FAIL %s, %d partials, %lld columns, element %lld%s: %a, expected %a\n",
                               fd_dtype_get(dtype)->name, P, (long long)n_col, (long long)k, fused ? ", fused" : "",
                               (double)w[i], (double)expected[k]);
                }
            }
        return FD_OK;
    });
    return code == FD_OK && wrong == 0;
}

int main() {
    int n_case = 0, n_failed = 0;
    for (uint32_t dtype = 0; dtype < FD_DTYPE_LIMIT; dtype++) {
        if (fd_can_pack(dtype) != (fd_dtype_get(dtype) && fd_can_dequantize(dtype))) {
            printf("FAIL %s is read by the CPU or by the kernels alone\n", fd_dtype_get(dtype)->name);
            n_failed++;
        }
        if (!fd_can_pack(dtype)) continue;
        const int64_t block = fd_dtype_get(dtype)->block_elements;
        for (int64_t n_col = block; n_col <= 1280; n_col += block > 7 ? block : 7) {
            const size_t bytes = (size_t)fd_dtype_row_bytes(dtype, n_col);
            const size_t row_bytes = (size_t)fd_packed_row_bytes(dtype, n_col);
            std::vector<uint8_t> file(bytes);
            std::vector<uint4> packed(row_bytes / 16);
            std::vector<float> expected((size_t)n_col);
            for (size_t i = 0; i < bytes; i++) file[i] = (uint8_t)random_bits();
            fd_dequantize_row(dtype, file.data(), expected.data(), n_col);
            fd_pack_weight_row(dtype, n_col, file.data(), packed.data());
            const uint8_t *row = (const uint8_t *)packed.data();
            n_failed += !check<8>(dtype, n_col, row, expected.data());
            n_failed += !check<2>(dtype, n_col, row, expected.data());
            if (n_case == 2) { /* the comparison can fail: one bit of one element */
                expected[1] = fd_from_bits32(fd_bits32(expected[1]) ^ 1u);
                n_failed += check<8>(dtype, n_col, row, expected.data(), true);
            }
            n_case += 2;
        }
    }
    printf("%d rows read by lanes, %d failed\n", n_case, n_failed);
    return n_failed > 0;
}
