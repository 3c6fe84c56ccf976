/* The vectors that codes of IQ1, IQ2 and IQ3 stand for. */
#ifndef FD_MODEL_GGUF_CODEBOOKS_H
#define FD_MODEL_GGUF_CODEBOOKS_H

#include <stdint.h>

/* A vector is a word: element i is bits 2i+1 … 2i of IQ1's and IQ2's eight, bits 3i+2 … 3i of IQ3's four. The decoder
 * says which number a level stands for (decode_codes.c). */
extern const uint16_t fd_iq1_codes[2048];
extern const uint16_t fd_iq2_xxs_codes[256], fd_iq2_xs_codes[512], fd_iq2_s_codes[1024];
extern const uint16_t fd_iq3_xxs_codes[256], fd_iq3_s_codes[512];

#endif
