/* The blocks' binary layouts, as in the file: drawn above each decoder (decode_32.c, decode_256.c, decode_codes.c).
 * Sources: the GGUF specification and ggml's type table. d, dmin and m are binary16. */
#ifndef FD_MODEL_GGUF_BLOCKS_H
#define FD_MODEL_GGUF_BLOCKS_H

#include <assert.h>
#include <stdint.h>

/* The table of base/dtype.c cannot be read at compile time; test_quant compares it with these. */
#define FD_BLOCK(name, bytes, ...)                                                                                     \
    typedef struct {                                                                                                   \
        __VA_ARGS__                                                                                                    \
    } fd_block_##name;                                                                                                 \
    static_assert(sizeof(fd_block_##name) == (bytes), #name)

/* Of 32 elements. */
FD_BLOCK(q4_0, 18, uint16_t d; uint8_t qs[16];);
FD_BLOCK(q4_1, 20, uint16_t d, m; uint8_t qs[16];);
FD_BLOCK(q5_0, 22, uint16_t d; uint8_t qh[4], qs[16];);
FD_BLOCK(q5_1, 24, uint16_t d, m; uint8_t qh[4], qs[16];);
FD_BLOCK(q8_0, 34, uint16_t d; int8_t qs[32];);
FD_BLOCK(iq4_nl, 18, uint16_t d; uint8_t qs[16];);
FD_BLOCK(mxfp4, 17, uint8_t e, qs[16];);
/* Of 64. */
FD_BLOCK(nvfp4, 36, uint8_t scales[4], qs[32];);
/* Of 256. */
FD_BLOCK(q2_K, 84, uint8_t scales[16], qs[64]; uint16_t d, dmin;);
FD_BLOCK(q3_K, 110, uint8_t hmask[32], qs[64], scales[12]; uint16_t d;);
FD_BLOCK(q4_K, 144, uint16_t d, dmin; uint8_t scales[12], qs[128];);
FD_BLOCK(q5_K, 176, uint16_t d, dmin; uint8_t scales[12], qh[32], qs[128];);
FD_BLOCK(q6_K, 210, uint8_t ql[128], qh[64]; int8_t scales[16]; uint16_t d;);
FD_BLOCK(tq1_0, 54, uint8_t qs[48], qh[4]; uint16_t d;);
FD_BLOCK(tq2_0, 66, uint8_t qs[64]; uint16_t d;);
FD_BLOCK(iq1_s, 50, uint16_t d; uint8_t qs[32]; uint16_t qh[8];);
FD_BLOCK(iq1_m, 56, uint8_t qs[32], qh[16]; uint16_t scales[4];);
FD_BLOCK(iq2_xxs, 66, uint16_t d; uint16_t qs[32];);
FD_BLOCK(iq2_xs, 74, uint16_t d; uint16_t qs[32]; uint8_t scales[8];);
FD_BLOCK(iq2_s, 82, uint16_t d; uint8_t qs[32], signs[32], qh[8], scales[8];);
FD_BLOCK(iq3_xxs, 98, uint16_t d; uint8_t qs[64], signs[32];);
FD_BLOCK(iq3_s, 110, uint16_t d; uint8_t qs[64], qh[8], signs[32], scales[4];);
FD_BLOCK(iq4_xs, 136, uint16_t d, scales_h; uint8_t scales_l[4], qs[128];);

#endif
