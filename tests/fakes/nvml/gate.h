/* Opened by nvmlInit, closed by the last nvmlShutdown. */
#ifndef FAKE_NVML_GATE_H
#define FAKE_NVML_GATE_H

#include "fake.h"

void gate_open(void);
bool gate_close(void); /* false: it was not open */

#endif
