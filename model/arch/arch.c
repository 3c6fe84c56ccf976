/* Looks an architecture up in the table of archs.def. */
#include "model/builder.h"

#include <stdio.h>
#include <string.h>

static const fd_arch *const table[] = {
#define FD_ARCH(name) &fd_arch_##name,
#include "model/arch/archs.def"
#undef FD_ARCH
};

const fd_arch *fd_arch_find(fd_string name, char *known, size_t known_size) {
    size_t at = 0;
    const fd_arch *found = NULL;
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (known && at < known_size)
            at += (size_t)snprintf(known + at, known_size - at, "%s%s", i ? ", " : "", table[i]->name);
        if (strlen(table[i]->name) == name.size && memcmp(table[i]->name, name.data, name.size) == 0) found = table[i];
    }
    return found;
}
