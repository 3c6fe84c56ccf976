/* The tokens of a text while it is encoded. */
#include <stdlib.h>

#include "model/tokenizer/internal.h"

fd_code fd_ids_push(fd_ids *ids, int32_t id, fd_error *err) {
    if (ids->n == ids->capacity) {
        if (ids->n > INT32_MAX / 2 - 64) return fd_fail(err, FD_ERR_INPUT, "text: more than %d tokens", ids->n);
        int32_t capacity = 2 * ids->capacity + 64;
        int32_t *data = realloc(ids->data, (size_t)capacity * sizeof *data);
        if (!data) return fd_fail(err, FD_ERR_MEMORY, "tokenizer: no memory for %d tokens", capacity);
        ids->data = data;
        ids->capacity = capacity;
    }
    ids->data[ids->n++] = id;
    return FD_OK;
}

fd_code fd_push_bytes(const fd_tokenizer *tokenizer, const char *data, size_t size, fd_ids *ids, fd_error *err) {
    for (size_t i = 0; i < size; i++) {
        unsigned byte = (unsigned char)data[i];
        int32_t token = tokenizer->token_of_byte[byte] >= 0 ? tokenizer->token_of_byte[byte] : tokenizer->unk;
        if (token < 0)
            return fd_fail(err, FD_ERR_INPUT,
                           "text: found byte 0x%02X, expected one with a token: the vocabulary has no unknown token",
                           byte);
        FD_TRY(fd_ids_push(ids, token, err));
    }
    return FD_OK;
}
