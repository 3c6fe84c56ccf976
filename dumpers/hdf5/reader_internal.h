/* The parent's side of the wall: reader.c opens and says what failed, questions.c asks, lists.c fetches links and
 * rows. */
#ifndef FD_DUMPERS_HDF5_READER_INTERNAL_H
#define FD_DUMPERS_HDF5_READER_INTERNAL_H

#include "dumpers/hdf5/plain.h"
#include "dumpers/hdf5/serve.h"
#include "dumpers/hdf5/wall.h"

typedef struct fd_h5_known { /* an answer that was fetched before it was asked for */
    fd_h5_question question;
    fd_h5_answer answer;
    char *bytes;
    bool there; /* it was answered */
} fd_h5_known;

struct fd_h5_reader {
    char *path, *group;
    int fd;
    uint64_t size;
    fd_h5_plain plain;   /* what is read without the library */
    fd_h5_reader *owner; /* whose child is asked: itself, or the reader of the file that this one is inside */
    /* of an owner: */
    fd_wall *wall;     /* NULL: the library was not needed yet */
    fd_h5_exchange *x; /* the wall's page */
    bool live, marked;
    fd_error refused; /* by the library, when it was asked to open the file; FD_OK: not */
    /* of each: */
    char at[FD_H5_PATH];  /* the object that was asked for last */
    fd_h5_known *known;   /* [n_known] */
    size_t n_known, next; /* next: the one that is probably asked for next */
    char *bytes;          /* what `known` points to */
};

/* Starts the child and opens the file in it, unless that is done; false when it cannot be, which `refused` says. */
bool fd_h5_reader_library(fd_h5_reader *reader);
/* Has the request in the page answered; false when the child is dead. */
bool fd_h5_reader_call(fd_h5_reader *reader, fd_h5_op op, const char *object);
void fd_h5_reader_forget(fd_h5_reader *reader); /* what was prefetched */

#endif
