/* Marks a file that is being written as one that any HDF5 program may open.
 *
 * The writer uses HDF5's single-writer/multiple-reader mode, because only there metadata reaches the disk in an order
 * that is whole at every moment: a killed run leaves a readable file. The mode's price is a flag in the superblock
 * ("open for writing") that a kill leaves behind and that makes h5py, HDFView and h5dump refuse the file until somebody
 * runs h5clear. This clears the flag on disk after each flush, which is what h5clear does. HDF5 keeps its own copy and
 * writes the flag again with the next change of the superblock. */
#ifndef FD_DUMPERS_SUPERBLOCK_H
#define FD_DUMPERS_SUPERBLOCK_H

#include <stdbool.h>

/* False when the superblock is not version 3 at offset 0 with a right checksum, or cannot be written: the file is then
 * left as it is. */
bool fd_superblock_clear_flags(int fd);

#endif
