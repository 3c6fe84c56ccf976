#include "tests/compare/golden_bench.h"
#include "tests/scratch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "compare/diff/record.h"

const fake_options clean_run;

fd_trace_info clean_info(void) {
    return (fd_trace_info){.numerics = "exact", .contract = FD_CONTRACT_VERSION, .model_hash = "xxh3-128:a"};
}

fd_code record_fake(const char *path, const fake_options *run, fd_trace_info info, fd_error *err) {
    int32_t tokens[N_POS];
    for (int32_t p = 0; p < N_PROMPT; p++) tokens[p] = fake_token(p);
    fd_trace_options options = fd_golden_options(path, N_POS);
    fd_trace_writer *to;
    fd_recording what = {.exec = fake_exec(run), .tokens = tokens, .n_token = N_PROMPT, .n_pos = N_POS, .whole = true};
    cr_assert_eq(fd_trace_create(&options, &info, fake_graph(), FD_NUMERICS_EXACT, &to, err), FD_OK, "%s",
                 err->message);
    fd_code code = fd_record(&what, to, err);
    if (code == FD_OK)
        code = fd_trace_finish(to, err);
    else
        fd_trace_abandon(to);
    fd_exec_free(what.exec);
    return code;
}

fd_trace *golden_of(fd_trace_info info, void (*edit)(hid_t file)) {
    char path[SCRATCH_PATH];
    fd_trace *golden;
    fd_error err = {0};
    close(mkstemp(scratch_path(path, "firstdiff-golden-XXXXXX")));
    cr_assert_eq(record_fake(path, &clean_run, info, &err), FD_OK, "%s", err.message);
    if (edit) {
        hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
        edit(file);
        H5Fclose(file);
    }
    cr_assert_eq(fd_trace_open(path, &golden, &err), FD_OK, "%s", err.message);
    unlink(path);
    return golden;
}

fd_trace *golden_of_clean(void) {
    return golden_of(clean_info(), NULL);
}

/* ---- edits ---- */

/* The first element of a dataset at a position. */
static void put_element(hid_t file, const char *name, hsize_t pos, hid_t type, const void *value) {
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(set), one = H5Screate(H5S_SCALAR);
    hsize_t start[2] = {pos, 0}, count[2] = {1, 1};
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, count, NULL);
    cr_assert_geq(H5Dwrite(set, type, one, space, H5P_DEFAULT, value), 0);
    H5Sclose(one);
    H5Sclose(space);
    H5Dclose(set);
}

void other_logit(hid_t file) {
    put_element(file, "tensors/logits", 1, H5T_NATIVE_FLOAT, &(float){7});
}
void other_token(hid_t file) {
    put_element(file, "tokens", N_PROMPT + 1, H5T_NATIVE_INT32, &(int32_t){31});
}
void without_first_logit(hid_t file) {
    put_element(file, "tensors/logits", 1, H5T_NATIVE_FLOAT, &(float){NAN});
}

void without_logits(hid_t file) {
    hid_t set = H5Dopen2(file, "tensors/logits", H5P_DEFAULT), space = H5Dget_space(set);
    hsize_t dims[2], start[2] = {1, 0};
    H5Sget_simple_extent_dims(space, dims, NULL);
    dims[0] = 1;
    float *row = malloc(sizeof *row * dims[1]);
    for (hsize_t i = 0; i < dims[1]; i++) row[i] = NAN;
    hid_t one = H5Screate_simple(2, dims, NULL);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, start, NULL, dims, NULL);
    cr_assert_geq(H5Dwrite(set, H5T_NATIVE_FLOAT, one, space, H5P_DEFAULT, row), 0);
    free(row);
    H5Sclose(one);
    H5Sclose(space);
    H5Dclose(set);
}
