#include "base/json.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/limits.h"

/* Bytes that jansson takes for an empty object or array, and for a value beside others; a little more than was
 * measured. */
enum { OBJECT = 256, ARRAY = 128, VALUE = 96 };

fd_code fd_json_fits(const char *name, const char *text, size_t size, fd_error *err) {
    uint64_t bytes = size;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        if (quoted && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            quoted = !quoted;
        else if (!quoted)
            bytes += text[i] == '{' ? OBJECT : text[i] == '[' ? ARRAY : text[i] == ',' ? VALUE : 0;
    }
    if (bytes <= (uint64_t)fd_limit_of(FD_LIMIT_JSON_MEMORY)) return FD_OK;
    return fd_limit_exceeded(err, FD_LIMIT_JSON_MEMORY, "%s: JSON that takes some %llu bytes", name,
                             (unsigned long long)bytes);
}
