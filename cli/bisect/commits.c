/* git bisect, step by step: a verdict in three values and a bug to look for are more than `git bisect run` takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bisect/process.h"
#include "cli/bisect/search.h"
#include "cli/cli.h"

typedef struct commits {
    const fd_bisect_how *how;
    char tree[4096]; /* the work tree */
    fd_bisect_bug bug;
    int n_judged, n_skipped;
} commits;

/* git … in the work tree (folder NULL: here); its output. FD_ERR_INPUT with `what` when it fails. */
static fd_code git(const char *folder, const char *const *argv, const char *what, char *output, size_t size,
                   fd_error *err) {
    int status;
    FD_TRY(fd_process_run(&(fd_process){.argv = argv, .folder = folder, .quiet = true, .output = output, .size = size},
                          &status, err));
    size_t n = strlen(output);
    if (status == 0 && n > 0 && output[n - 1] == '\n' && !strchr(output, '\n')[1]) output[n - 1] = '\0';
    return status == 0 ? FD_OK : fd_fail(err, FD_ERR_INPUT, "git: %s: status %d", what, status);
}

#define GIT(folder, what, output, ...)                                                                                 \
    git(folder, (const char *const[]){"git", __VA_ARGS__, NULL}, what, output, sizeof output, err)

/* "1a2b3c4 RoPE for halves", at most 33 characters. */
static fd_code describe(const commits *c, const char *commit, char to[64], fd_error *err) {
    char line[512];
    FD_TRY(GIT(c->tree, commit, line, "log", "-1", "--format=%h %s", commit));
    snprintf(to, 64, "%.33s", line);
    return FD_OK;
}

static fd_code judge_here(commits *c, bool *judged, bool *has, fd_error *err) {
    fd_bisect_result found;
    char name[64];
    FD_TRY(describe(c, "HEAD", name, err));
    FD_TRY(fd_bisect_judge(c->how, c->tree, &found, err));
    *judged = found.judged;
    *has = fd_bisect_has(&found, &c->bug);
    fd_bisect_say(name, &found, *has);
    c->n_judged += found.judged;
    c->n_skipped += !found.judged;
    return FD_OK;
}

/* What git bisect says at the end: the commit, or those that are left. */
static fd_code report_end(const commits *c, const char *said, int *status, fd_error *err) {
    char line[4096];
    const char *end = strstr(said, " is the first bad commit");
    *status = end ? FD_EXIT_SAME : FD_EXIT_INCOMPLETE;
    if (!end) {
        printf("only skipped commits are left; the first bad one is among:\n");
        FD_TRY(GIT(c->tree, "log", line, "log", "--oneline", "--no-decorate", "refs/bisect/bad", "--not",
                   "--glob=refs/bisect/good-*"));
        printf("%s\n", line);
    } else {
        FD_TRY(GIT(c->tree, "log", line, "log", "-1", "--format=%h \"%s\" by %an, %as", "refs/bisect/bad"));
        printf("first bad commit  %s\n", line);
    }
    fd_bisect_say_bug(&c->bug);
    printf("  judged      %d commit%s, %d skipped\n", c->n_judged, c->n_judged == 1 ? "" : "s", c->n_skipped);
    if (!end) return FD_OK;
    FD_TRY(GIT(c->tree, "log", line, "log", "-1", "--format=%h", "refs/bisect/bad"));
    printf("  next        git show %s\n", line);
    return FD_OK;
}

static fd_code judge_ends(commits *c, const char *good, const char *bad, int *status, fd_error *err) {
    char name[64], output[4096];
    bool judged, has;
    FD_TRY(describe(c, bad, name, err));
    FD_TRY(fd_bisect_ends(c->how, (const char *const[]){NULL, c->tree}, (const char *const[]){NULL, name}, &c->bug,
                          status, err));
    if (!c->bug.node[0]) return FD_OK;
    FD_TRY(GIT(c->tree, good, output, "checkout", "-q", "--detach", good));
    FD_TRY(judge_here(c, &judged, &has, err));
    *status = has ? FD_EXIT_DIVERGED : FD_EXIT_SAME;
    if (!judged) return fd_fail(err, FD_ERR_INPUT, "%s could not be judged; --verbose shows more", good);
    if (has) printf("%s has the bug too: give an older one\n", good);
    c->n_judged = 2;
    return FD_OK;
}

static fd_code search_commits(commits *c, const char *good, const char *bad, int *status, fd_error *err) {
    char said[16384];
    FD_TRY(judge_ends(c, good, bad, status, err));
    if (*status != FD_EXIT_SAME) return FD_OK;
    FD_TRY(GIT(c->tree, "bisect start", said, "bisect", "start", bad, good));
    while (!strstr(said, "is the first bad commit")) {
        bool judged, has;
        FD_TRY(judge_here(c, &judged, &has, err));
        const char *const argv[] = {"git", "bisect", !judged ? "skip" : has ? "bad" : "good", NULL};
        int ended;
        FD_TRY(fd_process_run(
            &(fd_process){.argv = argv, .folder = c->tree, .quiet = true, .output = said, .size = sizeof said}, &ended,
            err));
        if (ended == 2) break; /* only skipped ones are left */
        if (ended != 0) return fd_fail(err, FD_ERR_IO, "git bisect: status %d", ended);
    }
    return report_end(c, said, status, err);
}

fd_code fd_bisect_commits(const fd_bisect_how *how, const char *good, const char *bad, int *status, fd_error *err) {
    commits c = {.how = how};
    char commit[2][128], output[4096];
    const char *folder = getenv("TMPDIR");
    FD_TRY(GIT(NULL, good, commit[0], "rev-parse", "--verify", "-q", "--end-of-options", good));
    FD_TRY(GIT(NULL, bad, commit[1], "rev-parse", "--verify", "-q", "--end-of-options", bad));
    snprintf(c.tree, sizeof c.tree, "%s/firstdiff-bisect-XXXXXX", folder && *folder ? folder : "/tmp");
    if (!mkdtemp(c.tree)) return fd_fail(err, FD_ERR_IO, "%s: no folder there", c.tree);
    fd_code code = GIT(NULL, "worktree add", output, "worktree", "add", "-q", "--detach", c.tree, commit[1]);
    if (code == FD_OK) code = search_commits(&c, commit[0], commit[1], status, err);
    fd_error ignored;
    const char *const clean[] = {"git", "worktree", "remove", "--force", c.tree, NULL};
    if (git(NULL, clean, "worktree remove", output, sizeof output, &ignored) != FD_OK) rmdir(c.tree);
    return code;
}
