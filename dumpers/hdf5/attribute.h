/* An attribute in an object header: those that traces use are taken, the others passed over. */
#ifndef FD_DUMPERS_HDF5_ATTRIBUTE_H
#define FD_DUMPERS_HDF5_ATTRIBUTE_H

#include "dumpers/hdf5/object.h"

/* `message` is the attribute's message (File Format Specification 3.0, section IV.A.2.m), `strings` the window that the
 * texts outside it are read through. False only for an attribute that is used and not understood. */
bool fd_h5_attribute_read(const fd_h5_bytes *bytes, fd_h5_window *strings, fd_h5_cursor message, fd_h5_object *out);

#endif
