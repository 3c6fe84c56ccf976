/* A bug of every layer may be found late, where the bounds of a layer's output have room for it in the first layers and not in a later
 * one. What explains the finding, or might, is then asked of the same kind of tensor in the layers before by its direction
 * (projection.h), which bounds have no part in. */
#ifndef FD_COMPARE_DIAGNOSE_EARLIER_LAYERS_H
#define FD_COMPARE_DIAGNOSE_EARLIER_LAYERS_H

#include "compare/diagnose/diagnose.h"

/* In classes with room, of tensors that were reached through unrecorded ones, in a layer that is not the first. */
bool fd_may_begin_earlier(const fd_diagnose_options *ask, const fd_attribution *of);

/* `ask` and *e are about of->first. Where an explanation shows in the layers before and there, it is the name, and of->first becomes the
 * first layer that shows it. */
fd_code fd_begin_at_earlier_layer(const fd_diagnose_options *ask, fd_attribution *of, fd_explanation *e, fd_error *err);

#endif
