/* MIG devices in the scenario (group_mig.c), for the groups that answer for them. */
#ifndef FAKE_NVML_MIG_H
#define FAKE_NVML_MIG_H

#include "fake.h"

/* Whether a GPU in MIG mode has this GPU instance. */
bool mig_has_gpu_instance(int gpu, unsigned int gpu_instance);

/* What "gpu.N.mig.I" says of one GPM metric ("gpm.5=40"); false when it says nothing. */
bool mig_gpm_text(int gpu, unsigned int gpu_instance, unsigned int metric, char out[TEXT_SIZE]);

/* The handle's number of the MIG device with this name or UUID, NO_GPU when there is none. */
int mig_with_text(const struct key *key, const char *wanted);

#endif
