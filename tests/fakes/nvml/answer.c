/* Scenario values in the shapes in which NVML's functions answer. */
#include <string.h>

#include "fake.h"

nvmlReturn_t answer_unsigned(int gpu, const struct key *key, unsigned int *out)
{
    long long number;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = number_of(gpu, key, &number);
    if (result == NVML_SUCCESS)
        *out = (unsigned int)number;
    return result;
}

nvmlReturn_t answer_ulonglong(int gpu, const struct key *key, unsigned long long *out)
{
    long long number;
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    const nvmlReturn_t result = number_of(gpu, key, &number);
    if (result == NVML_SUCCESS)
        *out = (unsigned long long)number;
    return result;
}

nvmlReturn_t copy_text(const char *text, char *out, unsigned int size)
{
    const size_t length = strlen(text);
    if (out == NULL)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (length + 1 > size)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(out, text, length + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t answer_text(int gpu, const struct key *key, char *out, unsigned int size)
{
    char text[TEXT_SIZE];
    const nvmlReturn_t result = text_of(gpu, key, text);
    return result == NVML_SUCCESS ? copy_text(text, out, size) : result;
}
