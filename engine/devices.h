/* The GPUs of one engine: are they there, and do they reach each other's memory. */
#ifndef FD_ENGINE_DEVICES_H
#define FD_ENGINE_DEVICES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* Whether none of devices [n] stands there twice. */
bool fd_devices_differ(const int32_t *devices, int32_t n);

/* FD_ERR_DEVICE: one is not there, or cannot reach another's memory (peer access). */
fd_code fd_devices_check(const int32_t *devices, int32_t n, fd_error *err);

/* Lets `device`, the current one, reach the others' memory. */
fd_code fd_devices_reach(const int32_t *devices, int32_t n, int32_t device, fd_error *err);

#endif
