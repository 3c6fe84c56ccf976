/* Damage to a whole HDF5 file, as rows of a table. */
#ifndef FD_TESTS_TRACE_H5_EDIT_H
#define FD_TESTS_TRACE_H5_EDIT_H

#include <stdint.h>

/* What is done to an object of the file. */
typedef enum h5_damage {
    DELETED,      /* the object */
    NO_ATTRIBUTE, /* `attribute` of the object is deleted */
    SAYS,         /* it becomes `text` */
    IS,           /* or the integer shape[0] */
    EXTENT,       /* the dataset has `shape`; 0: as before */
    A_GROUP,      /* in its place */
    FLOATS,       /* likewise an empty dataset of `shape` of such elements */
    DOUBLES,
    INTEGERS,
    WORDS,
    PRINTS,
    CHARACTERS,
    ROWS,  /* of the elements it had */
    MOVED, /* to `text` */
} h5_damage;

typedef struct h5_edit {
    const char *name, *says;
    h5_damage how;
    const char *object, *attribute, *text;
    int64_t shape[3];
} h5_edit;

void h5_apply(const char *path, const h5_edit *edit);

#endif
