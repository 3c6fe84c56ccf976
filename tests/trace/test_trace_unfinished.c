/* Traces of other programs that died: rows beyond the tokens, a file that is marked as being written, data that never came. */
#include <criterion/criterion.h>
#include <hdf5.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "dumpers/hdf5/h5.h"
#include "fixture.h"
#include "tests/trace/foreign_trace.h"

/* Rows of the step that a run was killed in lie beyond its tokens, and so may a tensor's first row. */
static fd_code open_cut_off(int complete, int32_t first, fd_trace **out, fd_error *err) {
    const char *path = fixture_path("cut_off.h5");
    hid_t file = foreign_start(path);
    hsize_t dims[2] = {3, 3};
    const float data[9] = {7, 8, 9, 10, 11, 12, 13, 14, 15};
    fd_h5_put_int(file, "complete", complete);
    hid_t set = foreign_add(file, "logits", H5T_IEEE_F32LE, 2, dims, H5T_NATIVE_FLOAT, data);
    fd_h5_put_int(set, "first_position", first);
    H5Dclose(set);
    H5Fclose(file);
    return fd_trace_open(path, out, err);
}

Test(trace_unfinished, rows_beyond_the_tokens_are_ignored_where_a_run_was_killed) {
    fd_error err = {0};
    fd_trace *trace = NULL;
    float row[3];
    for (int32_t first = FOREIGN_N_POS - 1; first <= FOREIGN_N_POS + 5; first++) {
        cr_assert_eq(open_cut_off(0, first, &trace, &err), FD_OK, "first %d: %s", first, err.message);
        cr_expect_eq(fd_trace_n_pos(trace), FOREIGN_N_POS);
        fd_code last = fd_trace_read(trace, 0, FOREIGN_N_POS - 1, row, NULL, &err);
        cr_expect_eq(last, first == FOREIGN_N_POS - 1 ? FD_OK : FD_ERR_INCOMPLETE);
        if (last == FD_OK) cr_expect_eq(row[1], 8.0f);
        fd_trace_close(trace);
        cr_expect_eq(open_cut_off(1, first, &trace, &err), FD_ERR_INPUT, "complete, first %d", first);
    }
}

/* A run of another program that died in single-writer mode: HDF5's flag stays in the superblock. */
Test(trace_unfinished, a_file_that_is_marked_as_being_written_opens) {
    const char *path = fixture_path("marked.h5");
    pid_t child = fork();
    if (child == 0) {
        hid_t access = H5Pcreate(H5P_FILE_ACCESS);
        H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
        hid_t file = foreign_start_with(path, access);
        foreign_add_ramp(file, "logits");
        H5Fclose(file);
        file = H5Fopen(path, H5F_ACC_RDWR | H5F_ACC_SWMR_WRITE, access);
        H5Fflush(file, H5F_SCOPE_LOCAL);
        raise(SIGKILL);
    }
    waitpid(child, NULL, 0);
    hid_t plain;
    H5E_BEGIN_TRY {
        plain = H5Fopen(path, H5F_ACC_RDONLY, H5P_DEFAULT);
    }
    H5E_END_TRY
    cr_assert_lt(plain, 0, "the file is not marked: the case tests nothing");
    fd_trace *trace = fixture_open(path);
    cr_expect_eq(fd_trace_n_pos(trace), FOREIGN_N_POS);
    fd_trace_close(trace);
}

Test(trace_unfinished, a_dataset_that_was_never_written_is_no_data) {
    const char *path = fixture_path("unwritten.h5");
    hid_t file = foreign_start(path);
    hsize_t dims[2] = {FOREIGN_N_POS, 3};
    H5Dclose(foreign_add(file, "logits", H5T_IEEE_F32LE, 2, dims, -1, NULL));
    H5Fclose(file);
    fd_trace *trace = fixture_open(path);
    fd_error err = {0};
    float row[3];
    cr_expect_not(fd_trace_node_at(trace, 0)->has_data);
    cr_expect_eq(fd_trace_read(trace, 0, 0, row, NULL, &err), FD_ERR_INCOMPLETE);
    fd_trace_close(trace);
}
