/* nvmlDeviceGetFieldValues: the ids that the other groups registered with FIELD. */
#include <stdio.h>
#include <time.h>

#include "links.h"

enum { FIRST_MOVED = 251, LAST_MOVED = 273, NO_FIELD = 0 };

/* "580.65.06", or of NVML "13.580.65.06". */
static bool version_of(const char *which, int *branch, int *minor)
{
    char text[TEXT_SIZE];
    scenario_text(which, text);
    return sscanf(text, which[0] == 'n' ? "%*d.%d.%d" : "%d.%d", branch, minor) == 2;
}

/*
 * Ids 251 to 273 as they are numbered from driver 580.82 on, which is how they are registered here. 570 has those up to
 * 268 and no more; 575.51 to 580.76 have the last five of them first.
 */
static unsigned int as_numbered_now(unsigned int id)
{
    int branch = 999, minor = 0;
    if (id < FIRST_MOVED || id > LAST_MOVED)
        return id;
    if (!version_of("driver", &branch, &minor))
        version_of("nvml", &branch, &minor);
    if (branch > 580 || (branch == 580 && minor >= 82))
        return id;
    if (branch >= 575)
        return id <= 255 ? id + 18 : id - 5;
    return branch >= 570 && id <= 268 ? id : NO_FIELD;
}

static const struct field *find_field(unsigned int id)
{
    for (struct field **field = __start_fake_fields; field < __stop_fake_fields; field++)
        if ((*field)->id == id)
            return *field;
    return NULL;
}

static const struct link_field *find_link_field(unsigned int id)
{
    for (struct link_field **field = __start_fake_link_fields; field < __stop_fake_link_fields; field++)
        if ((*field)->id == id)
            return *field;
    return NULL;
}

static nvmlReturn_t field_number(int gpu, const struct field *field, long long *out)
{
    long long condition = 1;
    if (field->only_while != NULL && (number_of(gpu, field->only_while, &condition) != NVML_SUCCESS || !condition))
        return NVML_ERROR_NOT_SUPPORTED;
    return number_of(gpu, field->key, out);
}

static void put(nvmlFieldValue_t *entry, int type, long long number)
{
    entry->valueType = (unsigned int)type;
    entry->value.ullVal = 0;
    if (type == VALUE_UNSIGNED_INT)
        entry->value.uiVal = (unsigned int)number;
    else if (type == VALUE_SIGNED_INT)
        entry->value.siVal = (int)number;
    else
        entry->value.ullVal = (unsigned long long)number;
}

static void answer_field(int gpu, nvmlFieldValue_t *entry)
{
    const struct field *field = find_field(as_numbered_now(entry->fieldId));
    const struct link_field *link_field = field ? NULL : find_link_field(entry->fieldId);
    const int type = field        ? field->value_type
                     : link_field ? link_field->value_type
                                  : VALUE_UNSIGNED_LONG_LONG;
    long long number = 0;
    if (field_override(gpu, entry->fieldId, &entry->nvmlReturn, &number))
        ;
    else if (link_field != NULL)
        entry->nvmlReturn = link_field_number(gpu, link_field, entry->scopeId, &number);
    else
        entry->nvmlReturn = field ? field_number(gpu, field, &number) : NVML_ERROR_NOT_SUPPORTED;
    put(entry, type, entry->nvmlReturn == NVML_SUCCESS ? number : 0);
}

NVML nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t device, int count, nvmlFieldValue_t *entries)
{
    ENTER_GPU(nvmlDeviceGetFieldValues, device);
    if (entries == NULL || count < 0)
        return NVML_ERROR_INVALID_ARGUMENT;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    for (int i = 0; i < count; i++) {
        answer_field(gpu, &entries[i]);
        entries[i].timestamp = (long long)now.tv_sec * 1000000 + now.tv_nsec / 1000;
        entries[i].latencyUsec = 0;
    }
    return NVML_SUCCESS;
}
