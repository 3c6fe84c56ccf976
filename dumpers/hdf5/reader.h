/* HDF5 files from anywhere, read by a child process (wall.h): what crashes or hangs the library ends the child, and
 * the caller gets a message that names the file and the object. Everything that reads a trace or a golden comes
 * through here. What our own checked code understands (plain.h, object.h, index.h) is read by it; the child is started
 * when something else is asked for.
 *
 * Objects are named by their path from the root, "tensors/blk.0.attn_q"; "" is the root. From one thread at a time. */
#ifndef FD_DUMPERS_HDF5_READER_H
#define FD_DUMPERS_HDF5_READER_H

#include "dumpers/hdf5/inflated.h"

typedef struct fd_h5_reader fd_h5_reader;

/* Opens `path`, of which `group` is the root (NULL: the file's own). `expected` is "a trace", for messages. A file that
 * somebody may still be writing (attribute complete = 0, or marked so by another program) is opened as the reader of
 * a single-writer file. Nothing outside the file is followed: no link to another file, no external storage.
 * FD_ERR_INPUT for what is no HDF5 file, or a damaged one. */
fd_code fd_h5_reader_open(const char *path, const char *group, const char *expected, fd_h5_reader **out, fd_error *err);
/* Another reader of an open file, of which `group` is the root: one child answers for both. `file` must outlive it, and
 * is complete. */
fd_code fd_h5_reader_open_inside(fd_h5_reader *file, const char *group, fd_h5_reader **out, fd_error *err);
void fd_h5_reader_close(fd_h5_reader *reader); /* NULL is fine */

/* The file's bytes, for what is read past the library; borrowed. NULL when the file is of a form that is left to it, or
 * somebody may still be writing it. */
const fd_h5_bytes *fd_h5_reader_bytes(const fd_h5_reader *reader);

/* Its filtered chunks; borrowed. NULL as above, and when there is no memory. */
fd_h5_inflated *fd_h5_reader_inflated(const fd_h5_reader *reader);

uint64_t fd_h5_reader_size(const fd_h5_reader *reader); /* bytes of the file, when it was opened */

/* From here on nothing is read without the library: so that a test can compare the two. */
void fd_h5_reader_leave_to_library(fd_h5_reader *reader);

/* ---- questions ---- */

typedef struct fd_h5_dataset {
    fd_h5_shape shape; /* rank -1 or beyond FD_H5_MAX_RANK: no shape that can be read, `simple` is false */
    bool simple;
    fd_h5_class class;
    uint64_t element_bytes;
    uint32_t element; /* as fd_h5_object; FD_DTYPE_LIMIT for others */
    bool has_names;   /* FD_H5_IS_TABLE: with a column `name` */
    bool filtered;    /* compressed, say */
} fd_h5_dataset;

typedef enum fd_h5_kind {
    FD_H5_HAS,     /* → found: a link that leads to an object */
    FD_H5_DATASET, /* → found, dataset; absent: not a dataset that opens */
    FD_H5_STORED,  /* → value: bytes that a dataset's elements take in the file; 0 also when that cannot be said */
    FD_H5_INTEGER, /* an attribute, as fd_h5_get_int → found, value */
    FD_H5_TEXT,   /* an attribute, as fd_h5_get_string → found, value: its length; bytes: as much as fits, with NUL */
    FD_H5_HASHES, /* → found, value: how many; bytes: a list of 64-bit integers, when it fits */
} fd_h5_kind;

typedef struct fd_h5_answer {
    fd_h5_found found;
    int64_t value;
    fd_h5_dataset dataset;
} fd_h5_answer;

typedef struct fd_h5_question {
    fd_h5_kind kind;
    const char *object, *name; /* name: of an attribute, else "" */
    uint32_t room;             /* for FD_H5_TEXT and FD_H5_HASHES: the most bytes that are wanted */
} fd_h5_question;

/* Asks all of them with few calls. What is asked next, in about this order, is answered from there; what was asked
 * before by this function is forgotten. */
void fd_h5_reader_prefetch(fd_h5_reader *reader, const fd_h5_question *questions, size_t n);

/* One question; `bytes` [question->room], or NULL. */
fd_h5_answer fd_h5_reader_ask(fd_h5_reader *reader, const fd_h5_question *question, void *bytes);

/* As fd_h5_get_string and fd_h5_get_int. */
fd_h5_found fd_h5_reader_string(fd_h5_reader *reader, const char *object, const char *name, char *out, size_t size,
                                size_t *length);
fd_h5_found fd_h5_reader_int(fd_h5_reader *reader, const char *object, const char *name, int64_t *out);
bool fd_h5_reader_has(fd_h5_reader *reader, const char *object);
bool fd_h5_reader_dataset(fd_h5_reader *reader, const char *object, fd_h5_dataset *out);
uint64_t fd_h5_reader_stored(fd_h5_reader *reader, const char *object);

/* ---- lists and rows ---- */

/* As fd_h5_links. */
fd_h5_link *fd_h5_reader_links(fd_h5_reader *reader, const char *group, size_t limit, size_t *n);

/* A block of a dataset. */
typedef struct fd_h5_block {
    const char *object;
    const fd_h5_type *type; /* in memory; static, for the child reads it too */
    fd_h5_shape shape;      /* of the dataset: another is refused */
    fd_h5_shape start, count;
} fd_h5_block;
/* `out` holds the block's elements, one after another; what a table lacks of them stays as it is. */
bool fd_h5_reader_rows(fd_h5_reader *reader, const fd_h5_block *block, void *out);

/* ---- what failed ---- */

/* As fd_fail, with the library's reason for the last refusal appended; or, when it did not survive, that instead. */
fd_code fd_h5_reader_fail(const fd_h5_reader *reader, fd_error *err, fd_code code, const char *format, ...)
    FD_PRINTF(4, 5);
/* `code`, unless the library died meanwhile: then FD_ERR_INPUT, "PATH: damaged: the HDF5 library failed at /OBJECT". */
fd_code fd_h5_reader_survived(const fd_h5_reader *reader, fd_code code, fd_error *err);

#endif
