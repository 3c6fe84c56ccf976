/* The levels and vectors that codes of IQ4_NL, IQ4_XS, the FP4 types and the IQ types stand for. */
#ifndef FD_MODEL_GGUF_CODEBOOKS_H
#define FD_MODEL_GGUF_CODEBOOKS_H

#include <stdint.h>

extern const int8_t fd_iq4_levels[16];
extern const int8_t fd_fp4_levels[16]; /* twice E2M1's values; code 8, its −0, is 0 */

/* A vector is a word: element i is bits 2i+1 … 2i of IQ1's and IQ2's eight, bits 3i+2 … 3i of IQ3's four. The decoder
 * says which number a level stands for (decode_iq.c). */
extern const uint16_t fd_iq1_codes[2048];
extern const uint16_t fd_iq2_xxs_codes[256], fd_iq2_xs_codes[512], fd_iq2_s_codes[1024];
extern const uint16_t fd_iq3_xxs_codes[256], fd_iq3_s_codes[512];

#endif
