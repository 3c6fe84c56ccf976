/* The messages of an object header, one after another (HDF5 File Format Specification 3.0, IV.A.1): what an object is is
 * said by them. */
#ifndef FD_DUMPERS_HDF5_HEADER_H
#define FD_DUMPERS_HDF5_HEADER_H

#include "dumpers/hdf5/object.h"

typedef enum fd_h5_message_type {
    FD_H5_MSG_DATASPACE = 0x01,
    FD_H5_MSG_LINK_INFO = 0x02,
    FD_H5_MSG_DATATYPE = 0x03,
    FD_H5_MSG_LINK = 0x06,
    FD_H5_MSG_EXTERNAL = 0x07,
    FD_H5_MSG_LAYOUT = 0x08,
    FD_H5_MSG_FILTERS = 0x0b,
    FD_H5_MSG_ATTRIBUTE = 0x0c,
    FD_H5_MSG_CONTINUATION = 0x10, /* followed here, never shown */
    FD_H5_MSG_SYMBOL_TABLE = 0x11,
    FD_H5_MSG_ATTRIBUTE_INFO = 0x15,
} fd_h5_message_type;
enum { FD_H5_MSG_SHARED = 2 }; /* flag: the body lies elsewhere */

typedef struct fd_h5_message {
    uint64_t type, flags;
    fd_h5_cursor body;
} fd_h5_message;

/* False ends the walk. */
typedef bool (*fd_h5_message_fn)(const fd_h5_message *message, void *user);

/* Calls `take` for every message of the header at `address`. False when it is damaged, not understood, or `take` said
 * so. */
bool fd_h5_header_walk(const fd_h5_bytes *bytes, fd_h5_window *headers, uint64_t address, fd_h5_message_fn take,
                       void *user);

/* ---- messages that datasets of any type have (object.c) ---- */

bool fd_h5_read_dataspace(fd_h5_cursor body, fd_h5_shape *shape, hsize_t *max); /* rank 1 to FD_H5_MAX_RANK */
bool fd_h5_read_layout(fd_h5_cursor body, fd_h5_layout *out);
/* Once all messages were read: true when a layout fits the shape and elements of this size, which it then says. */
bool fd_h5_layout_fits(fd_h5_layout *layout, const fd_h5_shape *shape, size_t element_bytes);
/* False when an object has attributes outside its header. */
bool fd_h5_attributes_are_inside(fd_h5_cursor attribute_info);

#endif
