/* An attribute in an object header: those that traces use are taken, the others passed over. */
#ifndef FD_DUMPERS_HDF5_ATTRIBUTE_H
#define FD_DUMPERS_HDF5_ATTRIBUTE_H

#include "dumpers/hdf5/object.h"

/* `message` is the attribute's message (File Format Specification 3.0, section IV.A.2.m), `strings` the window that the
 * texts outside it are read through. False only for an attribute that is used and not understood. */
bool fd_h5_attribute_read(const fd_h5_bytes *bytes, fd_h5_window *strings, fd_h5_cursor message, fd_h5_object *out);

typedef struct fd_h5_value {
    fd_h5_found found;
    int64_t value; /* of a number; the length of a text */
    char *text;    /* [room] as much as fits, with its NUL */
    size_t room;
} fd_h5_value;
/* Takes the attribute `name`, one number or (`text`) one text, when it is this one. False when it is and is not
 * understood. */
bool fd_h5_attribute_find(const fd_h5_bytes *bytes, fd_h5_window *strings, fd_h5_cursor message, const char *name,
                          bool text, fd_h5_value *out);

#endif
