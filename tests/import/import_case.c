#include "tests/import/import_case.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

char folder[SCRATCH_PATH];

void set_up(void) {
    cr_assert(mkdtemp(scratch_path(folder, "fd_import_XXXXXX")));
}

void tear_down(void) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_assert_eq(system(command), 0);
}

void save(const char *name, const char *shape, int n, float start) {
    float *values = malloc(sizeof *values * (size_t)n);
    cr_assert(values);
    for (int i = 0; i < n; i++) values[i] = start + (float)i;
    save_values(name, shape, values, n);
    free(values);
}

void save_values(const char *name, const char *shape, const float *values, int n) {
    char path[160], header[128];
    snprintf(path, sizeof path, "%s/%s.npy", folder, name);
    int length = snprintf(header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape);
    FILE *file = fopen(path, "wb");
    cr_assert(file);
    fwrite("\x93NUMPY\1\0", 1, 8, file);
    fputc(length, file);
    fputc(0, file);
    fwrite(header, 1, (size_t)length, file);
    fwrite(values, sizeof *values, (size_t)n, file);
    fclose(file);
}

const fd_graph *model;

result import(const char *path, const char *map_text, int32_t n_token, const int32_t *sizes, int32_t n_size) {
    result r = {0};
    char out[96];
    int32_t tokens[16];
    for (int32_t i = 0; i < 16; i++) tokens[i] = i;
    snprintf(out, sizeof out, "%s/out.h5", folder);
    fd_source *source = NULL;
    fd_name_map *map = NULL;
    fd_import_plan plan;
    r.code = fd_source_open(path ? path : folder, &source, &r.err);
    if (r.code == FD_OK) r.code = fd_name_map_parse("m.map", map_text, strlen(map_text), &map, &r.err);
    fd_import_options how = {
        .map = map, .graph = model, .tokens = tokens, .n_token = n_token, .step_sizes = sizes, .n_step_size = n_size};
    if (r.code == FD_OK) r.code = fd_import_make_plan(source, &how, &plan, &r.err);
    if (r.code == FD_OK) {
        r.n_unmatched = plan.n_unmatched;
        r.n_allowed = plan.n_allowed;
        r.n_skipped = plan.n_skipped;
        r.code = fd_import_write(&plan, out, &r.err);
        fd_import_plan_free(&plan);
    }
    if (r.code == FD_OK) r.code = fd_trace_open(out, &r.trace, &r.err);
    fd_name_map_free(map);
    fd_source_close(source);
    return r;
}

float at(const fd_trace *trace, const char *node, int32_t pos, int i) {
    float row[64];
    fd_error err = {0};
    int32_t id = fd_trace_find(trace, node);
    cr_assert_geq(id, 0, "no %s", node);
    cr_assert_eq(fd_trace_read(trace, id, pos, row, NULL, &err), FD_OK, "%s: %s", node, err.message);
    return row[i];
}
