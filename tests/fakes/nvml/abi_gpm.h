/*
 * The part of NVML's binary interface that concerns GPM and MIG devices, laid out as in nvidia-ml-py (pynvml.py);
 * tests/unit/test_fake_nvml_gpm.py compares it with the installed pynvml.
 */
#ifndef FAKE_NVML_ABI_GPM_H
#define FAKE_NVML_ABI_GPM_H

#include "nvml_abi.h"

enum { GPM_VERSION = 1 }; /* of both versioned structures: a plain number here, no size in it */

typedef struct fake_sample *nvmlGpmSample_t; /* opaque to callers */

typedef struct {
    char *shortName, *longName, *unit;
} nvmlGpmMetricInfo_t;

typedef struct {
    unsigned int metricId;
    nvmlReturn_t nvmlReturn;
    double value;
    nvmlGpmMetricInfo_t metricInfo;
} nvmlGpmMetric_t;

typedef struct {
    unsigned int version, numMetrics;
    nvmlGpmSample_t sample1, sample2;
    nvmlGpmMetric_t metrics[1]; /* more of them in every header; how many depends on its age */
} nvmlGpmMetricsGet_t;

typedef struct {
    unsigned int version, isSupportedDevice;
} nvmlGpmSupport_t;

typedef struct {
    unsigned int multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount;
    unsigned int sharedJpegCount, sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    unsigned long long memorySizeMB;
} nvmlDeviceAttributes_t;

_Static_assert(sizeof(nvmlGpmMetric_t) == 40, "nvmlGpmMetric_t");
_Static_assert(sizeof(nvmlGpmSupport_t) == 8, "nvmlGpmSupport_t");
_Static_assert(sizeof(nvmlDeviceAttributes_t) == 40, "nvmlDeviceAttributes_t");

#endif
