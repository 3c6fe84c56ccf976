#include "cli/import/map_lines.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "dumpers/import/map.h"

void fd_cli_put_rules(FILE *to, const char *builtin, size_t size, const char *found) {
    if (builtin) fwrite(builtin, 1, size, to);
    for (const char *line = found, *end; *line; line = *end ? end + 1 : end) {
        end = line + strcspn(line, "\n");
        const char *arrow = strstr(line, " -> "), *comment = strstr(line, "  # ");
        if (strncmp(line, "skip ", 5) == 0) fprintf(to, "%.*s\n", (int)(end - line), line);
        if (!arrow || arrow > end || line[0] == '#') continue;
        const bool ask = strncmp(line, "ask ", 4) == 0;
        if (ask && memchr(line, '{', (size_t)(arrow - line))) continue; /* what may be taken */
        if (!comment || comment > end) comment = end;
        fprintf(to, "%.*s%s\n", (int)(comment - line), line, ask ? "" : " else");
    }
}

const char *fd_cli_next_line(const char **at, const char *start) {
    while (**at) {
        const char *line = *at;
        *at += strcspn(line, "\n");
        *at += **at == '\n';
        if (strncmp(line, start, strlen(start)) == 0) return line + strlen(start);
    }
    return NULL;
}

size_t fd_cli_put_asked(const char *text, char *to, size_t size) {
    size_t n = 0;
    for (const char *at = text, *line; (line = fd_cli_next_line(&at, "ask ")) != NULL;) {
        const size_t length = strcspn(line, "\n");
        if (memchr(line, '{', length) || n + length + 6 > size / 2) continue;
        n += (size_t)snprintf(to + n, size - n, "ask %.*s\n", (int)length, line);
    }
    return n;
}

/* Does a rule of `text` take the name? */
static bool is_taken(const char *text, const char *name) {
    for (const char *at = text, *line; (line = fd_cli_next_line(&at, "")) != NULL;) {
        char pattern[310];
        fd_name_map_capture capture;
        snprintf(pattern, sizeof pattern, "%.*s", (int)strcspn(line, " "), line);
        if (strncmp(line, "ask ", 4) != 0 && fd_name_map_matches(pattern, name, &capture)) return true;
    }
    return false;
}

void fd_cli_drop_idle_questions(char *taken) {
    for (char *line = taken; *line;) {
        char name[310], *end = line + strcspn(line, "\n");
        end += *end == '\n';
        const bool asks = strncmp(line, "ask ", 4) == 0;
        if (asks) snprintf(name, sizeof name, "%.*s", (int)strcspn(line + 4, " "), line + 4);
        if (asks && !is_taken(taken, name))
            memmove(line, end, strlen(end) + 1);
        else
            line = end;
    }
}

/* Does a rule, or another question, of `text` say what the name of the line is? */
static bool says_name(const char *text, const char *line) {
    char start[310], question[320];
    snprintf(start, sizeof start, "%.*s ", (int)strcspn(line, " "), line);
    snprintf(question, sizeof question, "ask %s", start);
    const char *a = text, *b = text;
    return fd_cli_next_line(&a, start) || fd_cli_next_line(&b, question);
}

char *fd_cli_join_lines(const char *taken, const char *rest) {
    char *whole = NULL;
    size_t size = 0;
    const char *at = taken, *line;
    const bool asks = fd_cli_next_line(&at, "ask ") != NULL;
    FILE *to = open_memstream(&whole, &size);
    if (!to) return NULL;
    for (at = taken; (line = fd_cli_next_line(&at, "ask ")) != NULL;)
        if (!says_name(rest, line)) fprintf(to, "ask %.*s\n", (int)strcspn(line, "\n"), line);
    if (asks) fputs(rest, to);
    for (at = taken; (line = fd_cli_next_line(&at, "")) != NULL;) {
        const char *comment = strstr(line, "  # ");
        if (strncmp(line, "ask ", 4) == 0) continue;
        fprintf(to, "%.*s%s%.*s\n", (int)(comment - line), line, asks ? " else" : "", (int)strcspn(comment, "\n"),
                comment);
    }
    if (!asks) fputs(rest, to);
    if (fclose(to) == 0) return whole;
    free(whole);
    return NULL;
}
