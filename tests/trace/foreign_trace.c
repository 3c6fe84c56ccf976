#include "tests/trace/foreign_trace.h"

#include <stdint.h>
#include <stdio.h>

#include "dumpers/hdf5/h5.h"

hid_t foreign_start_with(const char *path, hid_t access) {
    const int32_t tokens[FOREIGN_N_POS] = {3, 1, 4, 1};
    hsize_t n = FOREIGN_N_POS;
    hid_t file = H5Fcreate(path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    fd_h5_put_string(file, "schema", "firstdiff-trace");
    fd_h5_put_int(file, "version", 1);
    hid_t space = H5Screate_simple(1, &n, NULL);
    hid_t set = H5Dcreate2(file, "tokens", H5T_STD_I32LE, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    H5Dwrite(set, H5T_NATIVE_INT32, H5S_ALL, H5S_ALL, H5P_DEFAULT, tokens);
    H5Dclose(set);
    H5Sclose(space);
    H5Gclose(H5Gcreate2(file, "tensors", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    return file;
}

hid_t foreign_start(const char *path) {
    return foreign_start_with(path, H5P_DEFAULT);
}

hid_t foreign_add(hid_t file, const char *name, hid_t type, int rank, const hsize_t *dims, hid_t memory,
                  const void *data) {
    char path[128];
    snprintf(path, sizeof path, "tensors/%s", name);
    hid_t space = H5Screate_simple(rank, dims, NULL);
    hid_t set = H5Dcreate2(file, path, type, space, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
    if (data) H5Dwrite(set, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, data);
    H5Sclose(space);
    return set;
}

void foreign_add_ramp(hid_t file, const char *name) {
    hsize_t dims[2] = {FOREIGN_N_POS, 3};
    float data[FOREIGN_N_POS * 3];
    for (int i = 0; i < FOREIGN_N_POS * 3; i++) data[i] = (float)i;
    H5Dclose(foreign_add(file, name, H5T_IEEE_F32LE, 2, dims, H5T_NATIVE_FLOAT, data));
}
