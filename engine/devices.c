#include "engine/devices.h"

#include <cuda_runtime_api.h>
#include <limits.h>
#include <stdlib.h>

#include "engine/engine.h"
#include "kernels/launch_context.h"

static bool number_at(const char **text, int32_t *out) {
    char *end;
    if (**text < '0' || **text > '9') return false;
    long value = strtol(*text, &end, 10);
    if (value > INT32_MAX) return false;
    *out = (int32_t)value;
    *text = end;
    return true;
}

fd_code fd_engine_parse_devices(const char *text, fd_engine_devices *out, fd_error *err) {
    const char *at = text;
    int32_t number;
    *out = (fd_engine_devices){0};
    bool good = number_at(&at, &number);
    if (good && *at == '\0') { /* so many */
        good = number >= 1 && number <= FD_ENGINE_MAX_DEVICES;
        for (; good && out->n < number; out->n++) out->id[out->n] = out->n;
    } else if (good) { /* these */
        out->id[out->n++] = number;
        while (good && *at == ',' && at[1] != '\0' && out->n < FD_ENGINE_MAX_DEVICES) {
            at++;
            good = number_at(&at, &out->id[out->n++]);
        }
        if (*at == ',') at++;
        good = good && *at == '\0';
    }
    if (good) return FD_OK;
    return fd_fail(err, FD_ERR_INPUT,
                   "GPUs \"%.60s\": expected how many, 1 to %d, or a list of their numbers (0,2; one alone: 2,)", text,
                   FD_ENGINE_MAX_DEVICES);
}

bool fd_devices_differ(const int32_t *devices, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < i; k++)
            if (devices[i] == devices[k]) return false;
    return true;
}

fd_code fd_devices_check(const int32_t *devices, int32_t n, fd_error *err) {
    char why[256];
    int there = 0;
    if (!fd_engine_available(why, sizeof why)) return fd_fail(err, FD_ERR_DEVICE, "%s", why);
    FD_TRY(fd_cuda_check(cudaGetDeviceCount(&there), "devices", err));
    for (int32_t i = 0; i < n; i++)
        if (devices[i] < 0 || devices[i] >= there)
            return fd_fail(err, FD_ERR_DEVICE, "GPU %d: there %s %d, counted from 0", devices[i],
                           there == 1 ? "is" : "are", there);
    for (int32_t i = 0; i < n; i++)
        for (int32_t k = 0; k < n; k++) {
            int reaches = 1;
            if (devices[i] != devices[k])
                FD_TRY(fd_cuda_check(cudaDeviceCanAccessPeer(&reaches, devices[i], devices[k]), "devices", err));
            if (!reaches)
                return fd_fail(err, FD_ERR_DEVICE,
                               "GPU %d cannot reach the memory of GPU %d: several GPUs need peer access to each other "
                               "(nvidia-smi topo -p2p w shows which have it)",
                               devices[i], devices[k]);
        }
    return FD_OK;
}

fd_code fd_devices_reach(const int32_t *devices, int32_t n, int32_t device, fd_error *err) {
    for (int32_t i = 0; i < n; i++) {
        if (devices[i] == device) continue;
        cudaError_t status = cudaDeviceEnablePeerAccess(devices[i], 0);
        if (status == cudaErrorPeerAccessAlreadyEnabled)
            (void)cudaGetLastError();
        else
            FD_TRY(fd_cuda_check(status, "access to another GPU's memory", err));
    }
    return FD_OK;
}
