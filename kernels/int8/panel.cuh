/* Where the activations of few tokens lie: panels of 256 columns (fd_q8_rows), which the product copies to shared
 * memory as they are. A panel has a tile for each eight tokens:
 *
 *   [8 tokens] 256 int8, 32 bytes of nothing: the same block of four tokens then meets all banks
 *   [8 blocks][4 pairs of tokens] d of both, then d·Σq of both */
#ifndef FD_KERNELS_INT8_PANEL_CUH
#define FD_KERNELS_INT8_PANEL_CUH

#include "kernels/int8/q8.h"

enum {
    Q8_PANEL_BLOCKS = 8,
    Q8_PANEL_COLUMNS = 32 * Q8_PANEL_BLOCKS,
    Q8_PANEL_TOKEN = Q8_PANEL_COLUMNS + 32, /* bytes */
    Q8_PANEL_SCALES = 8 * Q8_PANEL_TOKEN,   /* where d and the sums begin */
    Q8_PANEL_TILE = Q8_PANEL_SCALES + Q8_PANEL_BLOCKS * 4 * 4 * (int)sizeof(float)
};

__host__ __device__ constexpr int q8_panel_bytes(int tokens) {
    return tokens / 8 * Q8_PANEL_TILE;
}

#endif
