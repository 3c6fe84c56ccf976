/* What can be said of a file without the library: the small files of h5py and the common parts of all. Every function
 * says whether it knows; where it does not, the library is asked (reader.h), and what both say is the same. */
#ifndef FD_DUMPERS_HDF5_PLAIN_H
#define FD_DUMPERS_HDF5_PLAIN_H

#include "dumpers/hdf5/reader.h"

/* A group's links in order of name, names in the same allocation; freed with free(). NULL: not known. */
fd_h5_link *fd_h5_group_links(const fd_h5_bytes *bytes, fd_h5_window *headers, uint64_t address, size_t limit,
                              size_t *n);

typedef struct fd_h5_plain {
    fd_h5_bytes bytes; /* its descriptor is closed by the owner; size 0: nothing is known */
    fd_h5_nearby nearby;
    fd_h5_inflated *inflated; /* NULL: no memory */
    uint64_t root;
    struct fd_h5_listed {  /* groups that paths led through */
        uint64_t address;  /* of the header; 0: none */
        fd_h5_link *links; /* [n]; NULL: not known */
        size_t n;
    } listed[4];
    unsigned next; /* of `listed` gives way */
} fd_h5_plain;

/* Takes `bytes`, of which `group` (NULL: none) is to be the root. */
void fd_h5_plain_open(fd_h5_plain *plain, const fd_h5_bytes *bytes, const char *group);
void fd_h5_plain_close(fd_h5_plain *plain);

/* True: *out and `bytes` are the answer. */
bool fd_h5_plain_ask(fd_h5_plain *plain, const fd_h5_question *question, void *bytes, fd_h5_answer *out);
/* Links of the group; NULL: not known, or more than `limit`. */
fd_h5_link *fd_h5_plain_links(fd_h5_plain *plain, const char *group, size_t limit, size_t *n);
/* True: `out` holds the block. */
bool fd_h5_plain_rows(fd_h5_plain *plain, const fd_h5_block *block, void *out);

#endif
