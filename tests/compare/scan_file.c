#include "tests/compare/scan_file.h"
#include "tests/scratch.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "dumpers/hdf5/h5.h"

const char *fd_scan_path(int file) {
    static char paths[FD_SCAN_FILES][SCRATCH_PATH];
    char name[48];
    if (paths[file][0]) return paths[file];
    snprintf(name, sizeof name, "firstdiff_scan_%d_%d.h5", (int)getpid(), file);
    return scratch_path(paths[file], name);
}

void fd_scan_put_frame(hid_t file, hsize_t n) {
    int32_t *tokens = calloc((size_t)n, sizeof *tokens);
    hid_t space = H5Screate_simple(1, &n, NULL);
    hid_t set = H5Dcreate2(file, "tokens", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens);
    H5Dclose(set);
    H5Sclose(space);
    free(tokens);
    fd_h5_put_string(file, "schema", "firstdiff-trace");
    fd_h5_put_int(file, "version", 1);
}

void fd_scan_unlink(void) {
    for (int i = 0; i < FD_SCAN_FILES; i++) unlink(fd_scan_path(i));
}
