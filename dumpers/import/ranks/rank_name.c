/* Names of ranks, as engines write them:
 *
 *   a folder           rank0/ rank_0/ tp0/ tp_rank_0/
 *   SGLang's dumper    step=0___rank=0___…, in a folder of its own or not; older ones: sglang_dump_TIME_RANK/
 *   SGLang's hooks     TP0_PP0_Rank0_pid77/Pass00003 (python/sglang/srt/model_executor/…: a file a pass)
 *   vLLM's logging     step_0/MODULE/outputs_cuda_0, inputs_0_cuda_0 (docs/contributing/intermediate_logging.md) */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/ranks/internal.h"
#include "dumpers/import/source_internal.h"

static bool number_below(const char *text, const char **end, int32_t *value, int32_t limit) {
    const char *at = text;
    int32_t number = 0;
    for (; isdigit((unsigned char)*at) && at - text < 8; at++) number = 10 * number + (*at - '0');
    if (at == text || number >= limit) return false;
    *value = number;
    *end = at;
    return true;
}

static bool number_at(const char *text, const char **end, int32_t *value) {
    return number_below(text, end, value, FD_MAX_RANKS);
}

/* A folder's name, from `text` to `end`. */
static bool rank_of_folder(const char *text, const char *end, int32_t *rank) {
    static const char *const words[] = {"tp_rank_", "tp_rank", "rank_", "rank", "tp_", "tp", "TP"};
    const char *after;
    if (end - text > 12 && strncmp(text, "sglang_dump_", 12) == 0) {
        const char *last = end;
        while (last > text && last[-1] != '_') last--;
        return number_at(last, &after, rank) && after == end;
    }
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        size_t n = strlen(words[i]);
        if ((size_t)(end - text) > n && strncmp(text, words[i], n) == 0 && number_at(text + n, &after, rank))
            return after == end || (strcmp(words[i], "TP") == 0 && strncmp(after, "_PP", 3) == 0);
    }
    return false;
}

/* SGLang's model writes its pass when it returns: what comes after it, its own output and the logits, is in the next pass's file. */
static bool is_of_pass_before(const char *tensor) {
    return strcmp(tensor, "model") == 0 || strcmp(tensor, "logits_processor") == 0;
}

void fd_rename_pass(char *name, size_t size) {
    char *folder = strstr(name, "Pass");
    if (!folder || (folder != name && folder[-1] != '/')) return;
    char copy[1100];
    const char *after;
    int32_t pass = 0;
    char *digits = folder + 4;
    while (*digits == '0' && digits[1] != '/') digits++;
    if (strlen(digits) >= sizeof copy || !number_below(digits, &after, &pass, FD_SOURCE_MAX_STEPS) || *after != '/')
        return;
    if (pass > 0) pass -= is_of_pass_before(after + 1);
    strcpy(copy, after);
    snprintf(name, size, "step_%d%s", pass, copy);
}

/* vLLM: the module's path, then which of its tensors. */
static bool module_tensor(char *name) {
    char *slash = strrchr(name, '/');
    if (!slash) return false;
    char text[16] = "", *item = slash + 1;
    bool outputs = strncmp(item, "outputs", 7) == 0, inputs = strncmp(item, "inputs", 6) == 0;
    if (!outputs && !inputs) return false;
    item += outputs ? 7 : 6;
    if (*item == '_') item++;
    if (strspn(item, "0123456789") != strlen(item) || strlen(item) > 6) return false;
    if (inputs) snprintf(text, sizeof text, ":in%s", strcmp(item, "0") == 0 ? "" : item);
    if (outputs && *item && strcmp(item, "0") != 0) snprintf(text, sizeof text, ":out%s", item);
    strcpy(slash, text); /* no longer than what stood there: "/inputs_1" */
    return true;
}

bool fd_rank_of_name(const char *name, char *out, size_t size, int32_t *rank) {
    char copy[1100];
    bool found = false;
    if (strlen(name) + 1 >= sizeof copy || size < sizeof copy) return false;
    copy[0] = '\0';
    for (const char *at = name; *at;) { /* folders that name a rank go */
        const char *end = at + strcspn(at, "/");
        bool is_rank = *end == '/' && !found && rank_of_folder(at, end, rank);
        found = found || is_rank;
        const char *next = *end ? end + 1 : end;
        if (!is_rank) strncat(copy, at, (size_t)(next - at));
        at = next;
    }
    const char *after;
    char *key = strstr(copy, "rank="), *device = strstr(copy, "_cuda_");
    if (!found && key && (key == copy || key[-1] == '_' || key[-1] == '/') && number_at(key + 5, &after, rank)) {
        found = true;
        key[5] = '0'; /* who reads the keys sees rank 0 */
        memmove(key + 6, after, strlen(after) + 1);
    }
    for (char *next; device && (next = strstr(device + 1, "_cuda_"));) device = next;
    if (!found && device && number_at(device + 6, &after, rank) && *after == '\0') {
        found = true;
        *device = '\0';
    }
    if (!found) return false;
    module_tensor(copy);
    fd_rename_pass(copy, sizeof copy);
    strcpy(out, copy);
    return copy[0] != '\0';
}

int32_t fd_rank_of_tensor(const char *name, size_t *length) {
    const char *at = strstr(name, ":rank"), *after;
    for (const char *next; at && (next = strstr(at + 1, ":rank"));) at = next;
    int32_t rank;
    *length = strlen(name);
    if (!at || !number_at(at + 5, &after, &rank) || *after) return -1;
    *length = (size_t)(at - name);
    return rank;
}
