/* make_corpus DIR: small GGUFs for the fuzzer to start from, one for each thing the parser does differently. */
#include <stdio.h>
#include <string.h>

#include "model/gguf_writer/gguf_writer.h"

enum { MAX_BYTES = 1 << 10 };

static uint8_t weights[MAX_BYTES];

static fd_code put_values(fd_gguf_writer *writer, fd_error *err) {
    const fd_string words[3] = {{"a", 1}, {"", 0}, {"\xe2\x96\x81the", 6}};
    char key[32];
    FD_TRY(fd_gguf_put_string(writer, "general.architecture", "llama", err));
    FD_TRY(fd_gguf_put_u32(writer, "llama.block_count", 2, err));
    FD_TRY(fd_gguf_put_f32(writer, "llama.rope.freq_base", 10000.0f, err));
    FD_TRY(fd_gguf_put_bool(writer, "tokenizer.ggml.add_bos_token", true, err));
    FD_TRY(fd_gguf_put_strings(writer, "tokenizer.ggml.tokens", words, 3, err));
    for (int type = 0; type < FD_GGUF_TYPE_COUNT; type++) {
        if (type == FD_GGUF_STRING || type == FD_GGUF_ARRAY) continue;
        static const uint8_t items[2 * 8] = {1, 0, 0, 0, 1};
        snprintf(key, sizeof key, "test.%s", fd_gguf_type_name((fd_gguf_type)type));
        FD_TRY(fd_gguf_put_array(writer, key, (fd_gguf_type)type, items, 2, err));
    }
    return FD_OK;
}

/* One tensor of `dtype` with two rows of one block, and a vector beside it. */
static fd_code put_weights(fd_gguf_writer *writer, uint32_t dtype, fd_error *err) {
    const int64_t columns = fd_dtype_get(dtype)->block_elements, matrix[2] = {columns, 2}, vector[1] = {5};
    FD_TRY(fd_gguf_put_tensor(writer, "token_embd.weight", dtype, 2, matrix, weights, NULL, NULL, err));
    return fd_gguf_put_tensor(writer, "blk.0.attn_q.bias", FD_F32, 1, vector, weights, NULL, NULL, err);
}

static fd_code write_one(const char *folder, const char *name, bool values, int dtype, uint32_t alignment,
                         fd_error *err) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    fd_gguf_writer *writer;
    FD_TRY(fd_gguf_writer_new(&writer, err));
    fd_code code = alignment ? fd_gguf_put_u32(writer, "general.alignment", alignment, err) : FD_OK;
    if (code == FD_OK && values) code = put_values(writer, err);
    if (code == FD_OK && dtype >= 0) code = put_weights(writer, (uint32_t)dtype, err);
    if (code == FD_OK) code = fd_gguf_write(writer, path, err);
    fd_gguf_writer_free(writer);
    return code;
}

static fd_code write_all(const char *folder, fd_error *err) {
    FD_TRY(write_one(folder, "empty", false, -1, 0, err));
    FD_TRY(write_one(folder, "values", true, -1, 0, err));
    FD_TRY(write_one(folder, "both", true, FD_F32, 0, err));
    FD_TRY(write_one(folder, "aligned_1", false, FD_Q8_0, 1, err));
    FD_TRY(write_one(folder, "aligned_64", false, FD_F16, 64, err));
    for (uint32_t dtype = 0; dtype < FD_DTYPE_LIMIT; dtype++) {
        const fd_dtype_info *info = fd_dtype_get(dtype);
        if (info && 2 * info->block_bytes <= MAX_BYTES)
            FD_TRY(write_one(folder, info->name, false, (int)dtype, 0, err));
    }
    return FD_OK;
}

int main(int argc, char **argv) {
    fd_error err = {0};
    if (argc != 2) {
        fprintf(stderr, "usage: make_corpus DIR\n");
        return 2;
    }
    for (size_t i = 0; i < sizeof weights; i++) weights[i] = (uint8_t)(1 + i * 37 % 59);
    if (write_all(argv[1], &err) == FD_OK) return 0;
    fprintf(stderr, "make_corpus: %s\n", err.message);
    return fd_exit_status(err.code);
}
