/* The table of architectures: adding one is adding a file and a row. */
#include "model/builder.h"

#include <stdio.h>
#include <string.h>

static const fd_arch *const table[] = {
    &fd_arch_llama,   &fd_arch_qwen2,     &fd_arch_qwen3,    &fd_arch_qwen3moe, &fd_arch_gpt_oss,
    &fd_arch_gemma,   &fd_arch_gemma2,    &fd_arch_granite,  &fd_arch_minicpm,  &fd_arch_mistral3,
    &fd_arch_smollm3, &fd_arch_internlm2, &fd_arch_seed_oss, &fd_arch_exaone4,
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
