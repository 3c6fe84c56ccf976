/* What is asked of the HDF5 library across the wall (wall.h), and the child's side that asks it. Parent and child are one
 * program: pointers to what is static mean the same in both. */
#ifndef FD_DUMPERS_HDF5_SERVE_H
#define FD_DUMPERS_HDF5_SERVE_H

#include "dumpers/hdf5/reader.h"

typedef enum fd_h5_op {
    FD_H5_OPEN, /* object: the file's path → ok: group is there, value: the file opened, n: it says that it is not complete */
    FD_H5_ASK,  /* questions → their answers */
    FD_H5_LIST, /* object, first, most → ok, value: how many links there are; n of them in data, from `first` on */
    FD_H5_ROWS, /* object, type, shape, start, count → ok, data */
} fd_h5_op;

enum { FD_H5_DATA = 16 << 20, FD_H5_PATH = 4096 + 512, FD_H5_QUESTIONS = 512 };

/* A question in the page; what it names and its answer's bytes stand in data. */
typedef struct fd_h5_asked {
    fd_h5_kind kind;
    uint32_t object, name, bytes; /* where they begin in data */
    uint32_t room;                /* of the answer's bytes */
    fd_h5_answer answer;
} fd_h5_asked;

typedef struct fd_h5_exchange {
    /* asked */
    fd_h5_op op;
    char group[64];          /* the root of what is asked for, "" the file's own */
    char object[FD_H5_PATH]; /* from the root, "tensors/logits" */
    uint64_t first, most;
    const fd_h5_type *type;
    fd_h5_shape shape, start, count; /* shape: what the dataset must have */
    bool live;                       /* FD_H5_OPEN: as the reader of a file that is being written */
    size_t memory;                   /* FD_H5_OPEN: bytes that the child may take */
    uint32_t n_question;
    fd_h5_asked questions[FD_H5_QUESTIONS];
    /* answered */
    uint32_t at; /* the question that is being answered */
    bool ok;
    int64_t value;
    uint64_t n;
    char reason[512];                   /* HDF5's, when it refused; "" none */
    _Alignas(64) char data[FD_H5_DATA]; /* FD_H5_LIST: an address of 8 bytes and a name with its NUL, each */
} fd_h5_exchange;

/* fd_wall_serve of fd_h5_exchange. */
void fd_h5_serve(void *page, void **state);

#endif
