/* The token ids of a run: of a trace, of tokens.txt, of arrays of that name. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "dumpers/import/source_internal.h"

static bool append(int32_t **tokens, int32_t *n, double value) {
    int32_t *more = *n < fd_limit_of(FD_LIMIT_POSITIONS) ? realloc(*tokens, sizeof **tokens * (size_t)(*n + 1)) : NULL;
    if (!more || !(value >= 0 && value <= INT32_MAX) || value != (double)(int32_t)value) {
        if (more) *tokens = more;
        return false;
    }
    *tokens = more;
    more[(*n)++] = (int32_t)value;
    return true;
}

static fd_code tokens_of_text(const char *path, int32_t **tokens, int32_t *n, fd_error *err) {
    char *text;
    size_t size;
    FD_TRY(fd_file_read(path, "token ids", FD_LIMIT_TEXT_BYTES, &text, &size, err));
    bool ok = true;
    char *at = text + strspn(text, " \t\r\n["), *end; /* as Python prints a list, too */
    while (ok && *at) {
        long long id = strtoll(at, &end, 10);
        ok = end != at && append(tokens, n, (double)id);
        if (!ok) break;
        at = end + (*end == ',');
        at += strspn(at, " \t\r\n]");
    }
    const bool all = ok && at == text + size && *n > 0;
    fd_code code = all ? FD_OK
                   : at == text + size
                       ? fd_fail(err, FD_ERR_INPUT, "%s: no token ids in it, expected some, as 1, 300, 45", path)
                       : fd_fail(err, FD_ERR_INPUT, "%s: expected token ids, as 1, 300, 45; \"%.*s\" is none", path,
                                 (int)strcspn(at, " ,\t\r\n"), at);
    free(text);
    return code;
}

bool fd_source_is_tokens(const fd_source_tensor *tensor) {
    const char *slash = strrchr(tensor->name, '/'),
               *name = slash ? slash + 1 : tensor->name; /* in an archive of a folder */
    return !fd_array_is_float(tensor->type) &&
           (strcmp(name, "tokens") == 0 || strcmp(name, "input_ids") == 0 || fd_ends_with(name, ".input_ids") ||
            strncmp(name, "inp_tokens", 10) == 0);
}

bool fd_source_is_weight(const char *name) {
    return fd_ends_with(name, ".weight") || fd_ends_with(name, ".bias");
}

static fd_code tokens_of_tensor(const fd_source *source, size_t i, int32_t **tokens, int32_t *n, fd_error *err) {
    fd_source_view view;
    FD_TRY(fd_source_view_open(source, i, &view, err));
    int64_t count = 1;
    for (int k = 0; k < view.array.rank; k++) count *= view.array.shape[k];
    double *ids = count <= fd_limit_of(FD_LIMIT_POSITIONS) ? malloc(sizeof *ids * (size_t)(count + 1)) : NULL;
    fd_code code = ids ? FD_OK
                       : fd_limit_exceeded(err, FD_LIMIT_POSITIONS, "%s: %s: %lld tokens", source->path,
                                           source->tensors[i].name, (long long)count);
    if (code == FD_OK) fd_array_fetch(&view.array, ids);
    for (int64_t k = 0; code == FD_OK && k < count; k++)
        if (!append(tokens, n, ids[k]))
            code = fd_fail(err, FD_ERR_INPUT, "%s: %s: token %lld is %g", source->path, source->tensors[i].name,
                           (long long)k, ids[k]);
    free(ids);
    fd_source_view_close(&view);
    return code;
}

fd_code fd_source_tokens(const fd_source *source, int32_t **tokens, int32_t *n, fd_error *err) {
    *tokens = NULL;
    *n = 0;
    fd_code code = FD_OK;
    if (source->trace) {
        for (int32_t i = 0; i < fd_trace_n_pos(source->trace); i++)
            if (!append(tokens, n, fd_trace_tokens(source->trace)[i]))
                code = fd_fail(err, FD_ERR_INPUT, "%s: token %d is %d", source->path, i,
                               fd_trace_tokens(source->trace)[i]);
    } else if (source->tokens_file) {
        code = tokens_of_text(source->tokens_file, tokens, n, err);
    } else {
        for (size_t i = 0; code == FD_OK && i < source->n; i++)
            if (fd_source_is_tokens(&source->tensors[i])) code = tokens_of_tensor(source, i, tokens, n, err);
    }
    if (code != FD_OK) {
        free(*tokens);
        *tokens = NULL;
        *n = 0;
    }
    return code;
}
