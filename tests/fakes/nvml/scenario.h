/*
 * The scenario in memory: one row of values per GPU, and the lists of overrides. Guarded by
 * scenario_mutex.
 */
#ifndef FAKE_NVML_SCENARIO_H
#define FAKE_NVML_SCENARIO_H

#include <pthread.h>

#include "fake.h"

enum { ANY_GPU = -1, EVERY_GPU = -2 }; /* of a rule: any call; calls on any GPU,
    but not those on the system */

struct value {
    enum { ABSENT, UNSUPPORTED, GIVEN } state;
    int line; /* in the scenario, 0 for a default */
    long long number;
    double per_s, since_s; /* of a number that runs; since_s is CLOCK_MONOTONIC */
    char *text;
    struct process *processes;
    unsigned int process_count;
};

/* `gpu.3.call.nvmlDeviceGetName = block 0.2 + error 15`; gpu may be ANY_GPU or EVERY_GPU */
struct call_rule {
    int gpu;
    char *function; /* a name, exact or without its _vN, or "*" */
    struct injection injection;
    int line;
};

/* `gpu.3.field.82 = error 3` or `gpu.3.field.82 = 95`; gpu may be ANY_GPU */
struct field_rule {
    int gpu;
    unsigned int id;
    nvmlReturn_t error;
    long long value;
};

struct scenario {
    unsigned int count;
    int cuda;
    int generation; /* of the library's initialisation when this was read */
    char driver[TEXT_SIZE], nvml[TEXT_SIZE];
    int highest_gpu, highest_gpu_line; /* of all gpu.N lines, -1 when there is none */
    struct value *rows[1 + MAX_GPUS];  /* [0] is gpu.*; [1 + i] is GPU i; each as long as there are keys */
    struct call_rule *call_rules;
    struct field_rule *field_rules;
    size_t call_rule_count, field_rule_count;
};

extern pthread_mutex_t scenario_mutex;
extern struct scenario *scenario_now; /* never NULL after the first refresh */

struct scenario *scenario_parse(char *content); /* aborts on anything it does not understand */
void scenario_free(struct scenario *scenario);

/* The value of one `key = value`; text and processes are allocated. Aborts when it does not fit the key. */
struct value value_parse(const struct key *key, const char *text, int line);
struct injection injection_parse(const char *text, int line);
void value_free(struct value *value);

bool parse_integer(const char *text, long long *out); /* decimal or 0x...; the whole text */

#endif
