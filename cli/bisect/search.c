#include "cli/bisect/search.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

void fd_bisect_say(const char *name, const fd_bisect_result *r, bool has) {
    const fd_bisect_bug *first = &r->bugs[0];
    printf("%-6s%-34s  ", !r->judged ? "skip" : has ? "bad" : "good", name);
    if (!r->judged)
        printf("%s\n", r->why);
    else if (!r->n_bug)
        printf("%s\n", r->status);
    else
        printf("%sat %s%s%s\n", has ? "" : "another bug ", first->node, first->name[0] ? ": " : "", first->name);
    fflush(stdout);
}

void fd_bisect_say_bug(const fd_bisect_bug *bug) {
    printf("  the bug     at %s: %s", bug->node, bug->summary[0] ? bug->summary : "not named");
    printf(bug->name[0] ? "  (%s)\n" : "\n", bug->name);
}

fd_code fd_bisect_ends(const fd_bisect_how *how, const char *const folders[2], const char *const names[2],
                       fd_bisect_bug *bug, int *status, fd_error *err) {
    fd_bisect_result bad, good;
    *status = FD_EXIT_DIVERGED;
    FD_TRY(fd_bisect_judge(how, folders[1], &bad, err));
    fd_bisect_say(names[1], &bad, bad.n_bug > 0);
    if (!bad.judged) return fd_fail(err, FD_ERR_INPUT, "%s: %s; --verbose shows more", names[1], bad.why);
    if (!bad.n_bug) {
        printf("%s has no bug: there is nothing to look for\n", names[1]);
        return FD_OK;
    }
    int32_t which = 0;
    while (how->bug && which < bad.n_bug && strcmp(bad.bugs[which].name, how->bug) != 0) which++;
    if (which == bad.n_bug) return fd_fail(err, FD_ERR_INPUT, "--bug %s: %s has not got it", how->bug, names[1]);
    *bug = bad.bugs[which];
    if (!folders[0]) return FD_OK; /* the caller looks at it */
    FD_TRY(fd_bisect_judge(how, folders[0], &good, err));
    fd_bisect_say(names[0], &good, fd_bisect_has(&good, bug));
    if (!good.judged) return fd_fail(err, FD_ERR_INPUT, "%s: %s; --verbose shows more", names[0], good.why);
    if (fd_bisect_has(&good, bug))
        printf("%s has the bug too: give an older one\n", names[0]);
    else
        *status = FD_EXIT_SAME;
    return FD_OK;
}

/* ---- releases ---- */

static int is_version(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int find_version(struct dirent **all, int n, const char *name, int otherwise) {
    for (int i = 0; name && i < n; i++)
        if (strcmp(all[i]->d_name, name) == 0) return i;
    return name ? -1 : otherwise;
}

/* Between good and bad: the middle, or its nearest neighbour that was not skipped; -1: none is left. */
static int next_version(const bool *skipped, int good, int bad) {
    int middle = (good + bad) / 2;
    for (int away = 0; away < bad - good; away++)
        for (int sign = 1; sign >= -1; sign -= 2) {
            int at = middle + sign * away;
            if (at > good && at < bad && !skipped[at]) return at;
        }
    return -1;
}

static fd_code search_releases(const fd_bisect_how *how, const char *folder, struct dirent **all, int good, int bad,
                               bool *skipped, int *status, fd_error *err) {
    char paths[2][4096];
    fd_bisect_bug bug;
    int at;
    snprintf(paths[0], sizeof paths[0], "%s/%s", folder, all[good]->d_name);
    snprintf(paths[1], sizeof paths[1], "%s/%s", folder, all[bad]->d_name);
    FD_TRY(fd_bisect_ends(how, (const char *const[]){paths[0], paths[1]},
                          (const char *const[]){all[good]->d_name, all[bad]->d_name}, &bug, status, err));
    if (*status != FD_EXIT_SAME) return FD_OK;
    while ((at = next_version(skipped, good, bad)) >= 0) {
        fd_bisect_result found;
        snprintf(paths[0], sizeof paths[0], "%s/%s", folder, all[at]->d_name);
        FD_TRY(fd_bisect_judge(how, paths[0], &found, err));
        bool has = fd_bisect_has(&found, &bug);
        fd_bisect_say(all[at]->d_name, &found, has);
        if (!found.judged)
            skipped[at] = true;
        else
            *(has ? &bad : &good) = at;
    }
    if (bad - good > 1) {
        *status = FD_EXIT_INCOMPLETE;
        printf("the bug came between %s and %s: what lies between was skipped\n", all[good]->d_name, all[bad]->d_name);
    } else {
        printf("%s is the first release with the bug\n", all[bad]->d_name);
    }
    fd_bisect_say_bug(&bug);
    return FD_OK;
}

fd_code fd_bisect_releases(const fd_bisect_how *how, const char *folder, const char *good, const char *bad, int *status,
                           fd_error *err) {
    struct dirent **all;
    int n = scandir(folder, &all, is_version, versionsort);
    if (n < 0) return fd_fail(err, FD_ERR_INPUT, "%s: no folder of releases", folder);
    int from = find_version(all, n, good, 0), to = find_version(all, n, bad, n - 1);
    bool *skipped = calloc((size_t)n + 1, sizeof *skipped);
    fd_code code = FD_OK;
    if (!skipped)
        code = fd_fail(err, FD_ERR_MEMORY, "%d releases: out of memory", n);
    else if (from < 0 || to < 0)
        code = fd_fail(err, FD_ERR_INPUT, "%s has no %s", folder, from < 0 ? good : bad);
    else if (from >= to)
        code = fd_fail(err, FD_ERR_INPUT, "%s: a good release and a later bad one expected", folder);
    else
        code = search_releases(how, folder, all, from, to, skipped, status, err);
    for (int i = 0; i < n; i++) free(all[i]);
    free(all);
    free(skipped);
    return code;
}
