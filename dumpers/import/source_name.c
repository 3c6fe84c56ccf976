#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/ranks/internal.h"
#include "dumpers/import/source_internal.h"

static bool digits(const char **at, int32_t *value) {
    const char *start = *at;
    int32_t number = 0;
    for (; isdigit((unsigned char)**at) && *at - start < 9; (*at)++) number = 10 * number + (**at - '0');
    if (*at == start || isdigit((unsigned char)**at)) return false;
    *value = number;
    return true;
}

/* "prefill/" "prefill_1/" "decode/" "decode_3." in front. Steps of decode come after those of prefill, from 0 or 1 on. */
static const char *skip_phase(const char *name, int32_t *step) {
    const bool decode = strncmp(name, "decode", 6) == 0;
    const char *at = decode ? name + 6 : strncmp(name, "prefill", 7) == 0 ? name + 7 : NULL;
    int32_t number = 0;
    if (!at) return name;
    const bool counted = *at != '/' && *at != '.';
    if (counted && (*at == '_' || *at == '-')) at++;
    if ((counted && !digits(&at, &number)) || (*at != '/' && *at != '.') || number >= FD_SOURCE_MAX_STEPS / 2)
        return name;
    *step = number + (decode ? FD_SOURCE_MAX_STEPS / 2 : 0);
    return at + 1;
}

/* "pos3/" "token_3/" "call-3/" in front: a folder for each position or call. */
static const char *skip_folder(const char *name, int32_t *step) {
    static const char *const words[] = {"position", "pos", "token", "tok", "call", "forward", "iter"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t n = strlen(words[i]);
        const char *at = name + n;
        int32_t number;
        if (strncmp(name, words[i], n) != 0) continue;
        if (*at == '_' || *at == '-' || *at == '=') at++;
        if (!digits(&at, &number) || *at != '/') continue;
        *step = number;
        return at + 1;
    }
    return name;
}

/* "s3." "step3." "step_3/" "step-3_" in front; a bare "s3x" is a name. */
static const char *skip_step(const char *name, int32_t *step) {
    const char *at = skip_folder(name, step);
    if (at != name) return at;
    int32_t number;
    bool word = strncmp(at, "step", 4) == 0;
    at += word ? 4 : *at == 's';
    if (at == name) return skip_phase(name, step);
    if (word && (*at == '_' || *at == '-' || *at == '=')) at++;
    if (!digits(&at, &number) || *at == '\0' || !strchr(word ? "._-/" : "./", *at)) return name;
    *step = number;
    return at + 1;
}

/* SGLang's dumper (python/sglang/srt/debug_utils/dumper.py) joins key=value pairs with three underscores:
 * DIR/EXPERIMENT/step=0___rank=0___dump_index=7___name=q___recompute_status=disabled___layer_id=3.pt; older ones
 * begin with forward_pass_id= and rank=. dump_index counts all tensors, so it orders those of one name. */
static bool key_values(const char *name, char *out, size_t size, int32_t *step, int32_t *occurrence) {
    char copy[1024];
    const char *called = NULL, *layer = NULL, *rank = "0", *slash = strrchr(name, '/');
    int32_t index;
    if (slash) name = slash + 1;
    if (strlen(name) >= sizeof copy || !strstr(name, "name=")) return false;
    strcpy(copy, name);
    for (char *part = copy, *next; part; part = next) {
        next = strstr(part, "___");
        if (next) {
            *next = '\0';
            next += 3;
        }
        char *value = strchr(part, '=');
        if (!value) return false;
        *value++ = '\0';
        const char *number = value;
        if (strcmp(part, "name") == 0) called = value;
        if (strcmp(part, "rank") == 0) rank = value;
        if (strcmp(part, "dump_index") == 0 && digits(&number, &index)) *occurrence = FD_SOURCE_BY_INDEX + index;
        if (strcmp(part, "layer_id") == 0 || strcmp(part, "layer") == 0) layer = value;
        if ((strcmp(part, "step") == 0 || strcmp(part, "forward_pass_id") == 0) && !digits(&number, step)) *step = 0;
    }
    if (!called || !*called) return false;
    bool in_layer = layer && strcmp(layer, "None") != 0, shard = strcmp(rank, "0") != 0;
    int n = snprintf(out, size, "%s%s%s%s%s", called, in_layer ? "-" : "", in_layer ? layer : "", shard ? ":rank" : "",
                     shard ? rank : "");
    return n > 0 && (size_t)n < size;
}

bool fd_source_split_name(const char *name, char *out, size_t size, int32_t *step, int32_t *occurrence) {
    *step = -1;
    *occurrence = 1;
    if (!key_values(name, out, size, step, occurrence)) {
        char pass[1200];
        if (strlen(name) + 8 >= sizeof pass) return false;
        strcpy(pass, name);
        fd_rename_pass(pass, sizeof pass);
        name = skip_step(pass, step);
        if (strlen(name) >= size) return false;
        strcpy(out, name);
    }
    char *hash = strrchr(out, '#');
    const char *number = hash ? hash + 1 : NULL;
    int32_t said;
    if (number && digits(&number, &said) && *number == '\0' && said >= 1) {
        *hash = '\0';
        *occurrence = said;
    }
    fd_source_hook_name(out, size);
    return out[0] != '\0';
}

/* What follows "_outputs_" or "_inputs_args_": nothing for the first tensor, "1" for the second, ".logits" for a
 * key. */
static const char *item(const char *text, char out[64]) {
    if (strcmp(text, "") == 0 || strcmp(text, "0") == 0) return "";
    snprintf(out, 64, "%s%.60s", isdigit((unsigned char)*text) ? "" : ".", text);
    return out;
}

bool fd_source_debugger_name(const char *file, char *out, size_t size) {
    const char *outputs = NULL, *inputs = NULL;
    for (const char *at = strstr(file, "_outputs"); at; at = strstr(at + 1, "_outputs")) outputs = at;
    for (const char *at = strstr(file, "_inputs_"); at; at = strstr(at + 1, "_inputs_")) inputs = at;
    const char *end = outputs && outputs > inputs ? outputs : inputs, *path = strchr(file, '.');
    if (!end) return false;
    bool whole = !path || path > end; /* the model itself: nothing after the class */
    path = whole ? "root" : path + 1;
    int length = whole ? 4 : (int)(end - path), n = -1;
    char key[64];
    if (end == outputs && (end[8] == '\0' || strcmp(end + 8, "_0") == 0))
        n = snprintf(out, size, "%.*s", length, path);
    else if (end == outputs && end[8] == '_')
        n = snprintf(out, size, "%.*s:out%s", length, path, item(end + 9, key));
    else if (whole && strcmp(end, "_inputs_kwargs_input_ids") == 0)
        n = snprintf(out, size, "input_ids");
    else if (strncmp(end, "_inputs_args_", 13) == 0)
        n = snprintf(out, size, "%.*s:in%s", length, path, item(end + 13, key));
    else if (strcmp(end, "_inputs_kwargs_hidden_states") == 0)
        n = snprintf(out, size, "%.*s:in", length, path);
    else if (strncmp(end, "_inputs_kwargs_", 15) == 0)
        n = snprintf(out, size, "%.*s:in.%s", length, path, end + 15);
    return n > 0 && (size_t)n < size && length > 0;
}
