/*
 * Inside the fake NVML: how a group of functions declares its scenario keys, its field ids and its calls.
 *
 * Everything registers itself through linker sections, so a new group of functions is one new .c file:
 *
 *     KEY(power_mw, NUMBER, "70000");                        gpu.3.power_mw = 312000 in the scenario
 *     FIELD(186, key_power_mw, VALUE_UNSIGNED_INT);          answered by nvmlDeviceGetFieldValues
 *     GPU_UNSIGNED(nvmlDeviceGetPowerUsage, key_power_mw)    the exported function
 */
#ifndef FAKE_NVML_FAKE_H
#define FAKE_NVML_FAKE_H

#include <stdbool.h>
#include <stddef.h>

#include "nvml_abi.h"

#define NVML __attribute__((visibility("default"))) /* everything else stays inside the library */
#define MAX_GPUS 64
#define TEXT_SIZE 256

/* Pointers, not the structures themselves, go into a section: compilers pad structures there. */
#define REGISTER(section_name, type, object) \
    static type *const registration_of_##object __attribute__((section(section_name), used)) = &object

/* ---- Scenario keys ---------------------------------------------------------------------------------- */

enum kind { TEXT, NUMBER, MASK, FLAG, PROCESSES };

/*
 * fallback: what the scenario would say; may hold one printf conversion (%u, %02X) that is given the GPU's
 * index plus index_offset; "=other_key" takes that key's value; NULL: absent unless the scenario gives it.
 */
struct key {
    const char *name;
    enum kind kind;
    const char *fallback;
    unsigned int index_offset;
    int column; /* set when the library is loaded */
};

#define KEY_NAMED(identifier, name_, kind_, ...)                                      \
    static struct key key_##identifier = {.name = name_, .kind = kind_, .fallback = __VA_ARGS__}; \
    REGISTER("fake_keys", struct key, key_##identifier)
#define KEY(identifier, kind_, ...) KEY_NAMED(identifier, #identifier, kind_, __VA_ARGS__)

struct process {
    unsigned int pid;
    unsigned long long memory_bytes; /* VALUE_NOT_AVAILABLE when unknown */
    char kind;                       /* 'c'ompute, 'g'raphics, 'm'ps */
    unsigned int gpu_instance;       /* NO_GPU_INSTANCE outside of MIG */
};

enum { NO_GPU_INSTANCE = -1 };

bool is_absent(int gpu, const struct key *key);
nvmlReturn_t number_of(int gpu, const struct key *key, long long *out);
nvmlReturn_t text_of(int gpu, const struct key *key, char out[TEXT_SIZE]);
/* All processes of one kind; returns how many there are, writes at most room of them. */
nvmlReturn_t processes_of(int gpu, const struct key *key, char kind, struct process *out, unsigned int room,
                           unsigned int *count);

/* The same, in the shapes in which NVML's functions answer. A NULL out is NVML_ERROR_INVALID_ARGUMENT. */
nvmlReturn_t answer_unsigned(int gpu, const struct key *key, unsigned int *out);
nvmlReturn_t answer_ulonglong(int gpu, const struct key *key, unsigned long long *out);
nvmlReturn_t answer_text(int gpu, const struct key *key, char *out, unsigned int size);
nvmlReturn_t copy_text(const char *text, char *out, unsigned int size);

unsigned int scenario_count(void);
int scenario_cuda(void);
void scenario_text(const char *which, char out[TEXT_SIZE]); /* driver | nvml */

/* ---- Field values ----------------------------------------------------------------------------------- */

struct field {
    unsigned int id;
    const struct key *key;
    int value_type;
    const struct key *only_while; /* a flag: the field exists only while it is set */
};

#define FIELD(id_, key_, value_type_, ...)                                                               \
    static struct field field_##id_ = {.id = id_, .key = &key_, .value_type = value_type_, __VA_ARGS__}; \
    REGISTER("fake_fields", struct field, field_##id_)

/* gpu.N.field.ID in the scenario: an error for this entry, or a value. False when there is none. */
bool field_override(int gpu, unsigned int id, nvmlReturn_t *error, long long *value);

/* ---- Calls ------------------------------------------------------------------------------------------ */

struct call {
    const char *name;
    int row; /* set when the library is loaded */
};

enum { NO_GPU = -1 };
struct fake_device {
    int index;
};
enum { MIG_SLOTS = 7, MAX_HANDLES = MAX_GPUS * (1 + MIG_SLOTS) };
extern struct fake_device fake_devices[MAX_HANDLES]; /* a handle points at one of these: GPUs, then MIG devices */

/* The GPU of a handle's index: its own, or that which a MIG device is on. */
static inline int gpu_behind(int index)
{
    return index < MAX_GPUS ? index : (index - MAX_GPUS) / MIG_SLOTS;
}

/* As text_of and number_of, for the handle of a MIG device (index >= MAX_GPUS). */
nvmlReturn_t mig_text_of(int index, const struct key *key, char out[TEXT_SIZE]);
nvmlReturn_t mig_number_of(int index, const struct key *key, long long *out);

/* Counts the call, obeys the scenario's call.* lines (errors, blocking), refuses it before nvmlInit. */
nvmlReturn_t enter(struct call *call, int gpu);
nvmlReturn_t enter_uninitialized(struct call *call);
int gpu_of(const struct call *call, nvmlDevice_t device);

#define DECLARE_CALL(function)                                                                        \
    _Static_assert(sizeof(#function) == sizeof(__func__), "the name given is not this function's"); \
    static struct call this_call = {.name = #function};                                               \
    REGISTER("fake_calls", struct call, this_call)

#define ENTER_SYSTEM(function)                                \
    DECLARE_CALL(function);                                   \
    do {                                                      \
        nvmlReturn_t refused_ = enter(&this_call, NO_GPU);    \
        if (refused_ != NVML_SUCCESS) return refused_;        \
    } while (0)

/* Declares `int gpu`, the index behind the handle. */
#define ENTER_GPU(function, device)                           \
    DECLARE_CALL(function);                                   \
    const int gpu = gpu_of(&this_call, device);               \
    do {                                                      \
        nvmlReturn_t refused_ = enter(&this_call, gpu);       \
        if (refused_ != NVML_SUCCESS) return refused_;        \
    } while (0)

#define GPU_UNSIGNED(function, key)                                   \
    NVML nvmlReturn_t function(nvmlDevice_t device, unsigned int *out) \
    {                                                                 \
        ENTER_GPU(function, device);                                  \
        return answer_unsigned(gpu, &key, out);                       \
    }

#define GPU_ULONGLONG(function, key)                                         \
    NVML nvmlReturn_t function(nvmlDevice_t device, unsigned long long *out) \
    {                                                                        \
        ENTER_GPU(function, device);                                         \
        return answer_ulonglong(gpu, &key, out);                             \
    }

#define GPU_TEXT(function, key)                                                       \
    NVML nvmlReturn_t function(nvmlDevice_t device, char *out, unsigned int size)     \
    {                                                                                 \
        ENTER_GPU(function, device);                                                  \
        return answer_text(gpu, &key, out, size);                                     \
    }

/* ---- Linker sections, the scenario's file, injections, counters -------------------------------------- */

extern struct key *__start_fake_keys[], *__stop_fake_keys[];
extern struct field *__start_fake_fields[], *__stop_fake_fields[];
extern struct call *__start_fake_calls[], *__stop_fake_calls[];

/* Re-reads the scenario when its file changed. Call before anything that reads it; thread-safe. */
void scenario_refresh(void);

/* Prints one line with the scenario's file and line number (0: none) and aborts. */
void fake_abort(int line, const char *format, ...) __attribute__((noreturn, format(printf, 2, 3)));

struct injection {
    double block_s; /* INFINITY: until the scenario changes */
    nvmlReturn_t result;
    bool until_init; /* only until the library is initialised again, as when the driver was loaded anew */
};
struct injection scenario_injection(const struct call *call, int gpu);

/* How often this process has initialised the library. */
int init_generation(void);

void count_call(const struct call *call, int gpu);

#endif
