/* The first bytes of an HDF5 file, as far as single-writer mode needs them.
 *
 * That mode brings metadata to the disk in an order that is whole at every moment, so a killed run leaves a readable
 * file. Its price is a flag in the superblock, "open for writing", that a kill leaves behind and that makes h5py,
 * HDFView and h5dump refuse the file until somebody runs h5clear, which clears the flag. Here it is cleared on its
 * way to the disk. */
#ifndef FD_DUMPERS_SUPERBLOCK_H
#define FD_DUMPERS_SUPERBLOCK_H

#include <stdbool.h>
#include <stdint.h>

enum { FD_SUPERBLOCK_BYTES = 48 };

/* The flags of a version 3 superblock with a right checksum; -1 for anything else. */
int fd_superblock_flags(const uint8_t block[FD_SUPERBLOCK_BYTES]);

/* Clears them and sets the checksum anew; leaves anything else as it is and returns false. */
bool fd_superblock_clear_flags(uint8_t block[FD_SUPERBLOCK_BYTES]);

#endif
