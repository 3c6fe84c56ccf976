#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/map.h"

typedef struct placeholder {
    size_t length;
    int32_t *value;
    int32_t ahead; /* {layer+1}: the name's number is one more than the layer */
} placeholder;

static bool find_placeholder(const char *p, fd_name_map_capture *capture, placeholder *out) {
    if (*p != '{') return false;
    if (strncmp(p, "{layer}", 7) == 0) return *out = (placeholder){7, &capture->layer, 0}, true;
    if (strncmp(p, "{layer+1}", 9) == 0) return *out = (placeholder){9, &capture->layer, 1}, true;
    if (strncmp(p, "{rank}", 6) == 0) return *out = (placeholder){6, &capture->rank, 0}, true;
    if (strncmp(p, "{last}", 6) == 0) return *out = (placeholder){6, &capture->last, 0}, true;
    return false;
}

/* Takes all digits at *name, at most 6; the same placeholder twice must be the same number. */
static bool take_number(const char **name, const placeholder *to) {
    const char *start = *name;
    int32_t number = 0;
    for (; **name >= '0' && **name <= '9' && *name - start < 6; (*name)++) number = 10 * number + (**name - '0');
    number -= to->ahead;
    if (*name == start || (**name >= '0' && **name <= '9') || number < 0) return false;
    if (*to->value >= 0 && *to->value != number) return false;
    *to->value = number;
    return true;
}

/* {name} ends a pattern and a node: it is the rest of the name. */
static bool is_rest(const char *p) {
    return strcmp(p, "{name}") == 0;
}

bool fd_name_map_matches(const char *pattern, const char *name, fd_name_map_capture *capture) {
    const char *star = NULL, *resume = NULL;
    fd_name_map_capture now = {-1, -1, -1, NULL}, at_star = now;
    while (*name || *pattern) {
        if (*name && is_rest(pattern)) {
            now.name = name;
            break;
        }
        placeholder number;
        bool is_number = find_placeholder(pattern, &now, &number);
        if (*pattern == '*') {
            star = ++pattern;
            resume = name;
            at_star = now;
            continue;
        }
        const char *ahead = name;
        if (is_number ? take_number(&ahead, &number) : *name && (*pattern == '?' || *pattern == *name)) {
            pattern += is_number ? number.length : 1;
            name = is_number ? ahead : name + 1;
            continue;
        }
        if (!star || !*resume) return false;
        name = ++resume;
        pattern = star;
        now = at_star;
    }
    *capture = now;
    return true;
}

bool fd_name_map_listed(const fd_name_map_list *list, const char *name) {
    fd_name_map_capture unused;
    for (size_t i = 0; i < list->n; i++)
        if (fd_name_map_matches(list->items[i], name, &unused)) return true;
    return false;
}

bool fd_name_map_is_asked(const fd_name_map *map, const fd_name_map_rule *rule, const char *name) {
    fd_name_map_capture unused;
    for (size_t i = 0; i < map->ask.n; i++)
        if (map->asked[i].line < rule->line && fd_name_map_matches(map->asked[i].pattern, name, &unused)) return true;
    return false;
}

bool fd_name_map_is_for(const fd_name_map_rule *rule, const char *arch) {
    if (!rule->archs) return true;
    const bool all_but = rule->archs[0] == '!';
    const size_t length = arch ? strlen(arch) : 0;
    for (const char *p = rule->archs + all_but; length && *p;) {
        const size_t n = strcspn(p, ",");
        if (n == length && memcmp(p, arch, n) == 0) return !all_but;
        p += n + (p[n] == ',');
    }
    return all_but;
}

bool fd_name_map_node(const fd_name_map_rule *rule, const fd_name_map_capture *capture, char *out, size_t size) {
    size_t at = 0;
    fd_name_map_capture numbers = *capture;
    for (const char *p = rule->node; *p;) {
        if (capture->name && is_rest(p)) {
            const int rest = snprintf(out + at, size - at, "%s", capture->name);
            return rest > 0 && (size_t)rest < size - at;
        }
        placeholder number;
        bool is_number = find_placeholder(p, &numbers, &number);
        int n =
            is_number ? snprintf(out + at, size - at, "%d", *number.value) : snprintf(out + at, size - at, "%c", *p);
        if (n < 0 || (size_t)n >= size - at) return false;
        at += (size_t)n;
        p += is_number ? number.length : 1;
    }
    return at > 0;
}
