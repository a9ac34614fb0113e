/* The PCIe link. */
#include "fake.h"

KEY(pcie_gen, NUMBER, "5");
KEY(pcie_gen_max, NUMBER, "5");
KEY(pcie_gen_gpu_max, NUMBER, "=pcie_gen_max"); /* what the GPU alone could; pcie_gen_max is GPU and slot */
KEY(pcie_width, NUMBER, "16");
KEY(pcie_width_max, NUMBER, "16");
KEY(pcie_replay_count, NUMBER, "0");
KEY(pcie_tx_kib_per_s, NUMBER, "0"); /* nvmlDeviceGetPcieThroughput: in reality it samples for 20 ms */
KEY(pcie_rx_kib_per_s, NUMBER, "0");
KEY(pcie_tx_bytes, NUMBER, "0"); /* counters */
KEY(pcie_rx_bytes, NUMBER, "0");

FIELD(94, key_pcie_replay_count, VALUE_UNSIGNED_INT);
FIELD(197, key_pcie_tx_bytes, VALUE_UNSIGNED_INT);
FIELD(198, key_pcie_rx_bytes, VALUE_UNSIGNED_INT);

GPU_UNSIGNED(nvmlDeviceGetCurrPcieLinkGeneration, key_pcie_gen)
GPU_UNSIGNED(nvmlDeviceGetMaxPcieLinkGeneration, key_pcie_gen_max)
GPU_UNSIGNED(nvmlDeviceGetGpuMaxPcieLinkGeneration, key_pcie_gen_gpu_max)
GPU_UNSIGNED(nvmlDeviceGetCurrPcieLinkWidth, key_pcie_width)
GPU_UNSIGNED(nvmlDeviceGetMaxPcieLinkWidth, key_pcie_width_max)
GPU_UNSIGNED(nvmlDeviceGetPcieReplayCounter, key_pcie_replay_count)

NVML nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t device, unsigned int counter, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetPcieThroughput, device);
    if (counter > 1)
        return NVML_ERROR_INVALID_ARGUMENT;
    return answer_unsigned(gpu, counter == 0 ? &key_pcie_tx_kib_per_s : &key_pcie_rx_kib_per_s, out);
}
