/* A stretch of a trace's file in memory, mapped or copied: it moves to what is asked for, and ends where the file
 * ends. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "dumpers/store/place.h"
#include "fixture.h"

enum { MORE = 3 * FD_TRACE_VIEW }; /* bytes behind a trace, of which each says where it is */

static char byte_at(uint64_t at) {
    return (char)(at * 2654435761u >> 24);
}

/* A trace, and the end of it in *end; the file goes on behind it. */
static fd_trace *long_file(const char **path, uint64_t *end) {
    fd_graph *graph = fixture_graph(fixture_small);
    fd_trace_options options = fd_trace_defaults(*path = fixture_path("long.h5"));
    struct stat there;
    char *more = malloc(MORE);
    fixture_write(&options, graph, FD_NUMERICS_EXACT, 5, 4);
    int file = open(*path, O_WRONLY | O_APPEND);
    cr_assert(file >= 0 && fstat(file, &there) == 0);
    *end = (uint64_t)there.st_size;
    for (uint64_t i = 0; i < MORE; i++) more[i] = byte_at(*end + i);
    cr_assert_eq(write(file, more, MORE), MORE);
    close(file);
    free(more);
    fd_graph_free(graph);
    return fixture_open(*path);
}

Test(view, shows_the_bytes_that_are_there_and_nothing_else) {
    static const struct {
        const char *what;
        uint64_t at; /* behind the trace */
        size_t n;
        bool there;
    } cases[] = {
        {"the first byte", 0, 1, true},
        {"a view", 1, FD_TRACE_VIEW, true},
        {"a view and a byte", 1, FD_TRACE_VIEW + 1, false},
        {"far on", 2 * FD_TRACE_VIEW + 12345, 4096, true},
        {"back again", 77, 100000, true},
        {"over the view's end", FD_TRACE_VIEW - 50, FD_TRACE_VIEW, true},
        {"the last byte", MORE - 1, 1, true},
        {"up to the end", MORE - FD_TRACE_VIEW, FD_TRACE_VIEW, true},
        {"a byte past the end", MORE - 4095, 4096, false},
        {"nothing, at the end", MORE, 0, true},
        {"past the end", MORE + 1, 0, false},
        {"past every file", UINT64_MAX - (1 << 30), 4096, false},
    };
    const char *path;
    uint64_t end;
    fd_trace *trace = long_file(&path, &end);
    fd_trace_view view = {0};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *found = fd_trace_view_at(trace, &view, end + cases[k].at, cases[k].n);
        cr_expect_eq(found != NULL, cases[k].there, "%s", cases[k].what);
        size_t same = 0;
        while (found && same < cases[k].n && found[same] == byte_at(end + cases[k].at + same)) same++;
        cr_expect(!found || same == cases[k].n, "%s: byte %zu is another", cases[k].what, same);
    }
    fd_trace_view_close(&view);
    fd_trace_close(trace);
}

Test(view, copies_the_bytes_that_are_there_and_nothing_else) {
    enum { SPAN = FD_TRACE_SPAN };
    static const struct {
        const char *what;
        uint64_t at; /* behind the trace */
        size_t n, had;
        bool there;
    } cases[] = {
        {"the first byte", 0, 1, 1, true},
        {"the next one, and what follows", 1, 1000, SPAN, true},
        {"of what followed", 5000, 16000, SPAN, true},
        {"its last byte", SPAN, 1, SPAN, true},
        {"a byte of it and one behind it", SPAN, 2, SPAN, true},
        {"a gap behind it", 2 * SPAN + 9000, 8192, SPAN, true},
        {"far on, alone", 20 * SPAN, 4096, 4096, true},
        {"back again, alone", 77, 100000, 100000, true},
        {"a span", 3, SPAN, SPAN, true},
        {"a span and a byte", 1, SPAN + 1, 0, false},
        {"near the end", MORE - 5000, 1000, 1000, true},
        {"up to the end", MORE - 4000, 4000, 4000, true},
        {"a byte past the end", MORE - 4095, 4096, 0, false},
        {"past every file", UINT64_MAX - (1 << 30), 4096, 0, false},
    };
    const char *path;
    uint64_t end;
    fd_trace *trace = long_file(&path, &end);
    fd_trace_span span = {0};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const char *found = fd_trace_span_at(trace, &span, end + cases[k].at, cases[k].n);
        cr_expect_eq(found != NULL, cases[k].there, "%s", cases[k].what);
        if (!found) continue;
        cr_expect_eq(span.n, cases[k].had, "%s: %zu bytes were read", cases[k].what, span.n);
        size_t same = 0;
        while (same < cases[k].n && found[same] == byte_at(end + cases[k].at + same)) same++;
        cr_expect_eq(same, cases[k].n, "%s: byte %zu is another", cases[k].what, same);
    }
    cr_assert_eq(truncate(path, 4096), 0);
    cr_expect_null(fd_trace_span_at(trace, &span, end, 4096), "bytes of a file that was cut short");
    cr_expect_null(fd_trace_span_at(trace, &span, end, 4096), "and again");
    fd_trace_span_close(&span);
    fd_trace_close(trace);
}

static const char *cut; /* its path */

static void end_by_name(int number, siginfo_t *info, void *context) {
    (void)number, (void)context;
    const char *path = fd_file_mapped_at(info->si_addr);
    _exit(path && strcmp(path, cut) == 0 ? 0 : 3);
}

Test(view, a_file_that_is_cut_short_is_known_by_its_name) {
    fd_trace_view view = {0};
    uint64_t end;
    fd_trace *trace = long_file(&cut, &end);
    const char *found = fd_trace_view_at(trace, &view, end, FD_TRACE_VIEW);
    cr_assert_str_eq(fd_file_mapped_at(found + 1), cut);
    pid_t child = fork();
    if (child == 0) {
        sigaction(SIGBUS, &(struct sigaction){.sa_sigaction = end_by_name, .sa_flags = SA_SIGINFO}, NULL);
        if (truncate(cut, 4096) != 0) _exit(4);
        _exit(found[FD_TRACE_VIEW - 1] == 0 ? 5 : 6);
    }
    int status;
    waitpid(child, &status, 0);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", (unsigned)status);
    fd_trace_view_close(&view);
    cr_expect_null(fd_file_mapped_at(found));
    fd_trace_close(trace);
}
