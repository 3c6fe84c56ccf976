#include "h5_edit.h"

#include <hdf5.h>

#include "dumpers/hdf5/h5.h"

static void set_extent(hid_t file, const h5_edit *e) {
    fd_h5_shape shape;
    hid_t set = H5Dopen2(file, e->object, H5P_DEFAULT);
    fd_h5_shape_of(set, &shape);
    for (int i = 0; i < 3; i++)
        if (e->shape[i]) shape.dim[i] = (hsize_t)e->shape[i];
    H5Dset_extent(set, shape.dim);
    H5Dclose(set);
}

static void replace(hid_t file, const h5_edit *e, hid_t type) {
    hsize_t chunk[3] = {1, 1, 1}, dims[3];
    int rank = 0;
    for (; rank < 3 && e->shape[rank]; rank++) dims[rank] = (hsize_t)e->shape[rank];
    hid_t space = H5Screate_simple(rank, dims, NULL), create = H5Pcreate(H5P_DATASET_CREATE);
    H5Pset_chunk(create, rank, chunk);
    H5Ldelete(file, e->object, H5P_DEFAULT);
    H5Dclose(H5Dcreate2(file, e->object, type, space, H5P_DEFAULT, create, H5P_DEFAULT));
    H5Pclose(create);
    H5Sclose(space);
}

void h5_apply(const char *path, const h5_edit *e) {
    hid_t file = H5Fopen(path, H5F_ACC_RDWR, H5P_DEFAULT);
    hid_t object = H5Oopen(file, e->object, H5P_DEFAULT), type = -1;
    if (e->how == ROWS) type = H5Dget_type(object);
    if (e->how == NO_ATTRIBUTE) H5Adelete(object, e->attribute);
    if (e->how == SAYS) fd_h5_put_string(object, e->attribute, e->text);
    if (e->how == IS) fd_h5_put_int(object, e->attribute, (int32_t)e->shape[0]);
    H5Oclose(object);
    switch (e->how) {
    case DELETED: H5Ldelete(file, e->object, H5P_DEFAULT); break;
    case EXTENT: set_extent(file, e); break;
    case A_GROUP:
        H5Ldelete(file, e->object, H5P_DEFAULT);
        H5Gclose(H5Gcreate2(file, e->object, H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
        break;
    case FLOATS: replace(file, e, H5T_IEEE_F32LE); break;
    case DOUBLES: replace(file, e, H5T_IEEE_F64LE); break;
    case INTEGERS: replace(file, e, H5T_STD_I32LE); break;
    case WORDS: replace(file, e, H5T_STD_U16LE); break;
    case PRINTS: replace(file, e, H5T_STD_U64LE); break;
    case CHARACTERS: replace(file, e, H5T_C_S1); break;
    case ROWS:
        replace(file, e, type);
        H5Tclose(type);
        break;
    case MOVED: H5Lmove(file, e->object, file, e->text, H5P_DEFAULT, H5P_DEFAULT); break;
    case NO_ATTRIBUTE:
    case SAYS:
    case IS: break;
    }
    H5Fclose(file);
}
