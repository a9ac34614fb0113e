/* Errors and blocking: the scenario's `call.FUNC = ...` and `gpu.3.field.82 = ...` lines. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

static void parse_action(char *action, const char *text, int line, struct injection *injection)
{
    long long code;
    char *end;
    char *until = strstr(action, " until init");
    if (until != NULL && until[strlen(" until init")] == '\0') {
        injection->until_init = true;
        *until = '\0';
    }
    if (strcmp(action, "ok") == 0) {
        injection->result = NVML_SUCCESS;
    } else if (strcmp(action, "missing") == 0) {
        injection->result = NVML_ERROR_FUNCTION_NOT_FOUND;
    } else if (strcmp(action, "block forever") == 0) {
        injection->block_s = INFINITY;
    } else if (strncmp(action, "error ", 6) == 0 && parse_integer(action + 6, &code) && code > 0) {
        injection->result = (nvmlReturn_t)code;
    } else if (strncmp(action, "block ", 6) == 0 && (injection->block_s = strtod(action + 6, &end)) > 0 &&
               *end == '\0' && end != action + 6) {
        return;
    } else {
        fake_abort(line,
                   "a call does \"ok\", \"error N\", \"block S\", \"block forever\" or \"missing\", "
                   "joined by \" + \", perhaps \"until init\", not \"%s\"",
                   text);
    }
}

struct injection injection_parse(const char *text, int line)
{
    struct injection injection = {.block_s = 0, .result = NVML_SUCCESS};
    char *rest = strdup(text);
    char *action = rest;
    for (char *plus; (plus = strstr(action, " + ")) != NULL; action = plus + 3) {
        *plus = '\0';
        parse_action(action, text, line, &injection);
    }
    parse_action(action, text, line, &injection);
    free(rest);
    return injection;
}

/*
 * How closely a rule names a call: 0 not at all, 1 "*", 2 its family (without _vN; nvmlInit: all of
 * them), 3 exactly.
 */
static int closeness(const char *function, const char *name)
{
    const size_t length = strlen(function);
    if (strcmp(function, name) == 0)
        return 3;
    if (strncmp(function, name, length) == 0 && strncmp(name + length, "_v", 2) == 0)
        return 2;
    if (strcmp(function, "nvmlInit") == 0 && strncmp(name, "nvmlInit", length) == 0)
        return 2;
    return strcmp(function, "*") == 0;
}

/* gpu.N wins over any GPU, a name over "*"; among equals the last line. */
struct injection scenario_injection(const struct call *call, int gpu)
{
    struct injection chosen = {.block_s = 0, .result = NVML_SUCCESS};
    int best = 0;
    pthread_mutex_lock(&scenario_mutex);
    for (size_t i = 0; i < scenario_now->call_rule_count; i++) {
        const struct call_rule *rule = &scenario_now->call_rules[i];
        int rank = closeness(rule->function, call->name);
        if (rank == 0 || (rule->gpu == EVERY_GPU && gpu == NO_GPU) || (rule->gpu >= 0 && rule->gpu != gpu))
            continue;
        if (rule->gpu >= 0)
            rank += 3;
        if (rank >= best) {
            best = rank;
            chosen = rule->injection;
        }
    }
    if (chosen.until_init && init_generation() != scenario_now->generation)
        chosen = (struct injection){.block_s = 0, .result = NVML_SUCCESS};
    pthread_mutex_unlock(&scenario_mutex);
    return chosen;
}

bool field_override(int gpu, unsigned int id, nvmlReturn_t *error, long long *value)
{
    bool found = false, is_specific = false;
    pthread_mutex_lock(&scenario_mutex);
    for (size_t i = 0; i < scenario_now->field_rule_count; i++) {
        const struct field_rule *rule = &scenario_now->field_rules[i];
        if (rule->id != id || (rule->gpu != ANY_GPU && rule->gpu != gpu) || (is_specific &&
                                                                             rule->gpu == ANY_GPU))
            continue;
        found = true;
        is_specific = rule->gpu != ANY_GPU;
        *error = rule->error;
        *value = rule->value;
    }
    pthread_mutex_unlock(&scenario_mutex);
    return found;
}
