/* NVLink as of an H100: 18 links of version 4 to switches. Keys of links are lists (links.h). */
#include <stdio.h>
#include <string.h>

#include "links.h"

enum { DEVICE_GPU = 0, DEVICE_SWITCH = 2, DEVICE_UNKNOWN = 0xff };

KEY(nvlink_links, NUMBER, "18");
KEY(nvlink_state, TEXT, "1");       /* 0 inactive, 1 active, 2 sleep, 3 active without traffic */
KEY(nvlink_version, TEXT, "6");     /* NVML's enumeration: 4 is 3.0, 6 is 4.0, 7 is 5.0 */
KEY(nvlink_speed_mbps, TEXT, "26562");
KEY(nvlink_remote, TEXT, "switch"); /* switch, a PCI bus id, or unsupported */
KEY(nvlink_replay, TEXT, "0");      /* up to Hopper */
KEY(nvlink_recovery, TEXT, "0");
KEY(nvlink_crc, TEXT, "0");
KEY(nvlink_tx_kib, TEXT, "0"); /* counters */
KEY(nvlink_rx_kib, TEXT, "0");
KEY(nvlink_tx_bytes, TEXT, "unsupported"); /* from Blackwell on, as all that follow */
KEY(nvlink_rx_bytes, TEXT, "unsupported");
KEY(nvlink_malformed_packet_errors, TEXT, "unsupported");
KEY(nvlink_buffer_overrun_errors, TEXT, "unsupported");
KEY(nvlink_rcv_errors, TEXT, "unsupported");
KEY(nvlink_rcv_remote_errors, TEXT, "unsupported");
KEY(nvlink_rcv_general_errors, TEXT, "unsupported");
KEY(nvlink_local_link_integrity_errors, TEXT, "unsupported");
KEY(nvlink_xmit_discards, TEXT, "unsupported");
KEY(nvlink_recovery_ok, TEXT, "unsupported");
KEY(nvlink_recovery_failed, TEXT, "unsupported");
KEY(nvlink_recovery_events, TEXT, "unsupported");
KEY(nvlink_effective, TEXT, "unsupported");
KEY(nvlink_symbol, TEXT, "unsupported");

FIELD(91, key_nvlink_links, VALUE_UNSIGNED_INT);
LINK_FIELD(138, key_nvlink_tx_kib, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK, .can_sum = true);
LINK_FIELD(139, key_nvlink_rx_kib, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK, .can_sum = true);
LINK_FIELD(161, key_nvlink_replay, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(162, key_nvlink_recovery, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(163, key_nvlink_crc, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(164, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = EVERY_LINK);
LINK_FIELD(165, key_nvlink_state, VALUE_UNSIGNED_INT, .link = EVERY_LINK);
LINK_FIELD(166, key_nvlink_version, VALUE_UNSIGNED_INT, .link = EVERY_LINK);
LINK_FIELD(202, key_nvlink_tx_bytes, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK, .can_sum = true);
LINK_FIELD(204, key_nvlink_rx_bytes, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK, .can_sum = true);
LINK_FIELD(206, key_nvlink_malformed_packet_errors, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(207, key_nvlink_buffer_overrun_errors, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(208, key_nvlink_rcv_errors, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(209, key_nvlink_rcv_remote_errors, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(210, key_nvlink_rcv_general_errors, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(211, key_nvlink_local_link_integrity_errors, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(212, key_nvlink_xmit_discards, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(213, key_nvlink_recovery_ok, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(214, key_nvlink_recovery_failed, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(215, key_nvlink_recovery_events, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(219, key_nvlink_effective, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
LINK_FIELD(221, key_nvlink_symbol, VALUE_UNSIGNED_LONG_LONG, .link = EVERY_LINK);
/* The speed of the first twelve links has an id for each link. */
LINK_FIELD(84, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 0);
LINK_FIELD(85, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 1);
LINK_FIELD(86, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 2);
LINK_FIELD(87, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 3);
LINK_FIELD(88, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 4);
LINK_FIELD(89, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 5);
LINK_FIELD(132, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 6);
LINK_FIELD(133, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 7);
LINK_FIELD(134, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 8);
LINK_FIELD(135, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 9);
LINK_FIELD(136, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 10);
LINK_FIELD(137, key_nvlink_speed_mbps, VALUE_UNSIGNED_INT, .link = 11);

unsigned int link_count(int gpu)
{
    long long count = 0;
    return number_of(gpu, &key_nvlink_links, &count) == NVML_SUCCESS ? (unsigned int)count : 0;
}

/* A GPU without NVLink does not support any of this; a link that is not there is an invalid argument. */
static nvmlReturn_t one_link(int gpu, const struct key *key, unsigned int link, long long *out)
{
    return link_count(gpu) == 0 ? NVML_ERROR_NOT_SUPPORTED : link_number(gpu, key, link, out);
}

static nvmlReturn_t one_link_unsigned(int gpu, const struct key *key, unsigned int link, unsigned int *out)
{
    long long number;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = one_link(gpu, key, link, &number);
    if (result == NVML_SUCCESS)
        *out = (unsigned int)number;
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned int link, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetNvLinkState, device);
    const nvmlReturn_t result = one_link_unsigned(gpu, &key_nvlink_state, link, out);
    if (result == NVML_SUCCESS)
        *out = *out == 1 || *out == 2;
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned int link, unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetNvLinkVersion, device);
    return one_link_unsigned(gpu, &key_nvlink_version, link, out);
}

NVML nvmlReturn_t nvmlDeviceGetNvLinkErrorCounter(nvmlDevice_t device, unsigned int link,
                                                  unsigned int counter, unsigned long long *out)
{
    ENTER_GPU(nvmlDeviceGetNvLinkErrorCounter, device);
    static const struct key *const counters[] = {&key_nvlink_replay, &key_nvlink_recovery, &key_nvlink_crc};
    long long number;
    if (out == NULL || counter >= sizeof counters / sizeof counters[0])
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = one_link(gpu, counters[counter], link, &number);
    if (result == NVML_SUCCESS)
        *out = (unsigned long long)number;
    return result;
}

NVML nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned int link,
                                                      unsigned int *out)
{
    ENTER_GPU(nvmlDeviceGetNvLinkRemoteDeviceType, device);
    char remote[TEXT_SIZE];
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = link_text(gpu, &key_nvlink_remote, link, remote);
    if (result == NVML_SUCCESS)
        *out = strcmp(remote, "switch") == 0 ? DEVICE_SWITCH
               : strcmp(remote, "unknown") == 0 ? DEVICE_UNKNOWN
                                                : DEVICE_GPU;
    return result;
}

static nvmlReturn_t remote_address(int gpu, unsigned int link, nvmlPciInfo_t *out)
{
    char remote[TEXT_SIZE];
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = link_text(gpu, &key_nvlink_remote, link, remote);
    if (result != NVML_SUCCESS)
        return result;
    *out = (nvmlPciInfo_t){.domain = 0};
    snprintf(out->busId, sizeof out->busId, "%.31s", strcmp(remote, "switch") ? remote : "00000000:05:00.0");
    return NVML_SUCCESS;
}

NVML nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned int link,
                                                   nvmlPciInfo_t *out)
{
    ENTER_GPU(nvmlDeviceGetNvLinkRemotePciInfo, device);
    return remote_address(gpu, link, out);
}

NVML nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned int link,
                                                      nvmlPciInfo_t *out)
{
    ENTER_GPU(nvmlDeviceGetNvLinkRemotePciInfo_v2, device);
    return remote_address(gpu, link, out);
}
