/* Values of single NVLinks, from lists in the scenario. */
#define _GNU_SOURCE
#include <string.h>

#include "links.h"
#include "scenario.h"

/* The item of a list for one link; the last one holds for all links beyond. */
nvmlReturn_t link_text(int gpu, const struct key *key, unsigned int link, char out[TEXT_SIZE])
{
    char list[TEXT_SIZE];
    if (link >= link_count(gpu))
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = text_of(gpu, key, list);
    if (result != NVML_SUCCESS)
        return result;
    const char *item = list;
    for (const char *comma; link > 0 && (comma = strchr(item, ',')) != NULL; link--)
        item = comma + 1;
    item += strspn(item, " \t");
    const size_t length = strcspn(item, ", \t");
    memcpy(out, item, length);
    out[length] = '\0';
    return strcmp(out, "unsupported") == 0 ? NVML_ERROR_NOT_SUPPORTED : NVML_SUCCESS;
}

nvmlReturn_t link_number(int gpu, const struct key *key, unsigned int link, long long *out)
{
    char text[TEXT_SIZE];
    const nvmlReturn_t result = link_text(gpu, key, link, text);
    if (result == NVML_SUCCESS && !parse_integer(text, out))
        fake_abort(0, "gpu.%d.%s is a list of numbers by link, not \"%s\"", gpu, key->name, text);
    return result;
}

nvmlReturn_t link_field_number(int gpu, const struct link_field *field, unsigned int scope, long long *out)
{
    if (field->link != EVERY_LINK)
        scope = (unsigned int)field->link;
    if (scope != ALL_LINKS || !field->can_sum)
        return link_number(gpu, field->key, scope, out);
    const unsigned int count = link_count(gpu);
    *out = 0;
    for (unsigned int link = 0; link < count; link++) {
        long long one;
        const nvmlReturn_t result = link_number(gpu, field->key, link, &one);
        if (result != NVML_SUCCESS)
            return result;
        *out += one;
    }
    return count > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}
