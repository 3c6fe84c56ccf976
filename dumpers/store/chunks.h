/* Chunks of tensors, for store.c; fd_store_put and what goes with it are in store.h. */
#ifndef FD_DUMPERS_STORE_CHUNKS_H
#define FD_DUMPERS_STORE_CHUNKS_H

#include "dumpers/store/store.h"

/* Prepares a new tensor's chunks. False: out of memory. */
bool fd_chunks_begin(fd_store *store, fd_store_tensor *tensor);
void fd_chunks_free(fd_store *store);

#endif
