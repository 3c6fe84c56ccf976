/* Files of torch.save since PyTorch 1.6: zip archives of NAME/data.pkl, a pickle that describes objects, and NAME/data/0, 1, …, the
 * elements of storages. The pickle is read, never run (pickle.h). */
#ifndef FD_DUMPERS_IMPORT_TORCH_H
#define FD_DUMPERS_IMPORT_TORCH_H

#include "dumpers/import/pickle.h"
#include "dumpers/import/zip.h"

bool fd_torch_is(const fd_zip *zip);
/* Its tensors, each of them inside its storage. `name` is for messages. */
fd_code fd_torch_list(const char *name, const fd_zip *zip, fd_pickle *out, fd_error *err);
/* The elements of one of them; the caller frees *owned, NULL where they lie in the archive. */
fd_code fd_torch_array(const char *name, const fd_zip *zip, const fd_pickle_tensor *tensor, fd_array *out, void **owned,
                       fd_error *err);

#endif
