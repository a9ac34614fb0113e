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
KEY(pcie_l0_to_recovery, NUMBER, "0");
KEY(pcie_correctable_errors, NUMBER, "0");
KEY(pcie_naks_received, NUMBER, "0");
KEY(pcie_receiver_error, NUMBER, "0");
KEY(pcie_bad_tlp, NUMBER, "0");
KEY(pcie_naks_sent, NUMBER, "0");
KEY(pcie_bad_dllp, NUMBER, "0");
KEY(pcie_non_fatal_error, NUMBER, "0");
KEY(pcie_fatal_error, NUMBER, "0");
KEY(pcie_unsupported_req, NUMBER, "0");
KEY(pcie_lcrc_error, NUMBER, "0");
KEY(pcie_lane_error, NUMBER, "0");

FIELD(94, key_pcie_replay_count, VALUE_UNSIGNED_INT);
FIELD(197, key_pcie_tx_bytes, VALUE_UNSIGNED_INT);
FIELD(198, key_pcie_rx_bytes, VALUE_UNSIGNED_INT);
FIELD(169, key_pcie_l0_to_recovery, VALUE_UNSIGNED_INT);
FIELD(173, key_pcie_correctable_errors, VALUE_UNSIGNED_INT);
FIELD(174, key_pcie_naks_received, VALUE_UNSIGNED_INT);
FIELD(175, key_pcie_receiver_error, VALUE_UNSIGNED_INT);
FIELD(176, key_pcie_bad_tlp, VALUE_UNSIGNED_INT);
FIELD(177, key_pcie_naks_sent, VALUE_UNSIGNED_INT);
FIELD(178, key_pcie_bad_dllp, VALUE_UNSIGNED_INT);
FIELD(179, key_pcie_non_fatal_error, VALUE_UNSIGNED_INT);
FIELD(180, key_pcie_fatal_error, VALUE_UNSIGNED_INT);
FIELD(181, key_pcie_unsupported_req, VALUE_UNSIGNED_INT);
FIELD(182, key_pcie_lcrc_error, VALUE_UNSIGNED_INT);
FIELD(183, key_pcie_lane_error, VALUE_UNSIGNED_INT);

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
