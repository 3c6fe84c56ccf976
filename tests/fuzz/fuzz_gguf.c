/* libFuzzer target: whatever bytes are parsed as a GGUF, everything a caller can reach is safe to touch. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf/gguf.h"
#include "model/gguf/quant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A broken promise of the parser is a finding, like a bad access. */
static void require(int condition, const char *promise) {
    if (condition) return;
    fprintf(stderr, "fuzz_gguf: broken promise: %s\n", promise);
    abort();
}

static volatile uint64_t sink; /* what is read must be seen to be used */

static void touch(const void *data, size_t size) {
    uint64_t sum = 0;
    for (size_t i = 0; i < size; i++) sum += ((const uint8_t *)data)[i];
    sink += sum;
}

static void walk_kv(const fd_gguf *gguf, const fd_gguf_kv *kv) {
    char *key = strndup(kv->key.data, kv->key.size);
    fd_error err = {0};
    int64_t integer;
    double number;
    bool flag;
    fd_string string;
    require(key && fd_gguf_find(gguf, key) == kv, "every key is found under its name");
    if (fd_gguf_get_i64(gguf, key, 0, &integer, &err) != FD_OK) require(err.message[0], "an error has a message");
    (void)fd_gguf_get_f64(gguf, key, 0, &number, &err);
    (void)fd_gguf_get_bool(gguf, key, false, &flag, &err);
    if (fd_gguf_get_string(gguf, key, &string, &err) == FD_OK) touch(string.data, string.size);
    free(key);
    for (uint64_t i = 0; i < kv->count && kv->item_type != FD_GGUF_STRING; i++) {
        if (fd_gguf_item_i64(kv, i, &integer)) sink += (uint64_t)integer;
        require(fd_gguf_item_f64(kv, i, &number) || kv->item_type == FD_GGUF_BOOL, "every number is a number");
    }
    size_t cursor = 0;
    uint64_t n = 0;
    while (fd_gguf_next_string(kv, &cursor, &string)) {
        touch(string.data, string.size);
        n++;
    }
    require(kv->item_type != FD_GGUF_STRING || (n == kv->count && cursor == kv->size), "every string is walked");
    touch(kv->data, kv->size);
}

static void walk_tensor(const fd_gguf *gguf, const fd_gguf_tensor *tensor) {
    const uint8_t *file = fd_gguf_file_data(gguf), *start = tensor->data;
    const int64_t row = fd_dtype_row_bytes(tensor->dtype, tensor->shape[0]);
    require(fd_gguf_find_tensor(gguf, tensor->name) == tensor, "every tensor is found under its name");
    require(start >= file && tensor->bytes <= (size_t)(file + fd_gguf_file_size(gguf) - start),
            "tensors lie in the file");
    require(row > 0 && (uint64_t)row <= tensor->bytes && tensor->bytes % (uint64_t)row == 0, "a tensor is whole rows");
    touch(tensor->data, tensor->bytes);
#ifdef FD_FUZZ_PLANTED /* the mutant: the error a parser makes most easily; tests/fuzz/run checks that it is found */
    touch(start + tensor->bytes, 1);
#endif
    if (!fd_can_dequantize(tensor->dtype)) return;
    float *values = malloc((size_t)tensor->shape[0] * sizeof *values);
    if (!values) return;
    fd_dequantize_row(tensor->dtype, tensor->data, values, tensor->shape[0]);
    touch(values, (size_t)tensor->shape[0] * sizeof *values);
    free(values);
}

static void count_problem(void *user, const char *message) {
    require(message[0] && !strchr(message, '\n'), "a problem is one line");
    ++*(size_t *)user;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    fd_gguf *gguf;
    fd_error err = {0};
    fd_code code = fd_gguf_parse(data, size, &gguf, &err);
    if (code != FD_OK) {
        require(!gguf && err.code == code && err.message[0] && !strchr(err.message, '\n'),
                "an error has a one-line message");
        return 0;
    }
    for (size_t i = 0; i < fd_gguf_n_kv(gguf); i++) walk_kv(gguf, fd_gguf_kv_at(gguf, i));
    for (size_t i = 0; i < fd_gguf_n_tensor(gguf); i++) walk_tensor(gguf, fd_gguf_tensor_at(gguf, i));
    size_t heard = 0, n_problem = 0;
    code = fd_gguf_verify(gguf, count_problem, &heard, &n_problem, &err);
    require(code == FD_OK || code == FD_ERR_INCOMPLETE, "verify works on what was parsed");
    require(heard == n_problem, "every problem is reported");
    fd_gguf_close(gguf);
    return 0;
}
