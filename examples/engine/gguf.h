/* Reading a GGUF: the whole file in memory, its keys and tensors looked up by name. Errors end the program. */
#ifndef GGUF_H
#define GGUF_H

#include <stddef.h>
#include <stdint.h>

enum { TYPE_F32 = 0, TYPE_F16 = 1, TYPE_Q8_0 = 8 }; /* of ggml's element types, those this engine knows */

typedef struct tensor {
    char name[64];
    uint32_t type;
    uint64_t columns, rows;     /* contiguous: columns; rows is 1 for a vector */
    const unsigned char *bytes; /* inside the file */
    uint64_t size;
} tensor;

typedef struct gguf {
    unsigned char *file;
    size_t size;
    size_t first_key;
    uint64_t n_key;
    tensor *tensors;
    uint64_t n_tensor;
} gguf;

void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

gguf gguf_read(const char *path);
double gguf_number(const gguf *g, const char *key, double absent); /* any scalar */
void gguf_text(const gguf *g, const char *key, char *out, size_t size);
const tensor *gguf_tensor(const gguf *g, const char *name); /* NULL when there is none */

float half_to_float(uint16_t h);
/* n elements from `bytes` on, as floats. */
void decode(uint32_t type, const unsigned char *bytes, uint64_t n, float *out);

#endif
