/* From the scenario's text to struct scenario. One `key = value` per line; `#` starts a comment. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scenario.h"

static size_t key_count(void)
{
    return (size_t)(__stop_fake_keys - __start_fake_keys);
}

static char *trimmed(char *text)
{
    while (isspace((unsigned char)*text))
        text++;
    char *end = text + strlen(text);
    while (end > text && isspace((unsigned char)end[-1]))
        *--end = '\0';
    return text;
}

static void cut_comment(char *line)
{
    for (char *at = line; *at; at++) {
        if (*at == '#' && (at == line || isspace((unsigned char)at[-1]))) {
            *at = '\0';
            return;
        }
    }
}

static const struct key *find_key(const char *name)
{
    for (struct key **key = __start_fake_keys; key < __stop_fake_keys; key++)
        if (strcmp((*key)->name, name) == 0)
            return *key;
    return NULL;
}

static bool is_function_or_family(const char *name)
{
    const size_t length = strlen(name);
    if (strcmp(name, "*") == 0)
        return true;
    for (struct call **call = __start_fake_calls; call < __stop_fake_calls; call++)
        if (strncmp((*call)->name, name, length) == 0 &&
            ((*call)->name[length] == '\0' || strncmp((*call)->name + length, "_v", 2) == 0))
            return true;
    return false;
}

static void add_call_rule(struct scenario *scenario, int gpu, const char *function, const char *text,
                          int line)
{
    if (!is_function_or_family(function))
        fake_abort(line, "the fake has no function \"%s\"", function);
    scenario->call_rules = reallocarray(scenario->call_rules, scenario->call_rule_count + 1,
                                        sizeof(struct call_rule));
    scenario->call_rules[scenario->call_rule_count++] = (struct call_rule){
        .gpu = gpu, .function = strdup(function), .injection = injection_parse(text, line), .line = line};
}

static void add_field_rule(struct scenario *scenario, int gpu, const char *id, const char *text, int line)
{
    struct field_rule rule = {.gpu = gpu};
    long long number;
    if (!parse_integer(id, &number) || number <= 0)
        fake_abort(line, "\"%s\" is no field id", id);
    rule.id = (unsigned int)number;
    if (strcmp(text, "unsupported") == 0)
        rule.error = NVML_ERROR_NOT_SUPPORTED;
    else if (strncmp(text, "error ", 6) == 0 && parse_integer(text + 6, &number) && number > 0)
        rule.error = (nvmlReturn_t)number;
    else if (!parse_integer(text, &rule.value))
        fake_abort(line, "a field is \"error N\", \"unsupported\" or a number, not \"%s\"", text);
    scenario->field_rules = reallocarray(scenario->field_rules, scenario->field_rule_count + 1, sizeof rule);
    scenario->field_rules[scenario->field_rule_count++] = rule;
}

/* `which` is what follows "gpu.": a selector, a dot and the rest. */
static void parse_gpu_line(struct scenario *scenario, char *which, const char *text, int line)
{
    char *rest = strchr(which, '.');
    long long gpu = ANY_GPU;
    if (rest == NULL)
        fake_abort(line, "\"gpu.%s\" names no key", which);
    *rest++ = '\0';
    if (strcmp(which, "*") != 0 && (!parse_integer(which, &gpu) || gpu < 0 || gpu >= MAX_GPUS))
        fake_abort(line, "\"gpu.%s\": a GPU is * or 0 to %d", which, MAX_GPUS - 1);
    if ((int)gpu > scenario->highest_gpu) {
        scenario->highest_gpu = (int)gpu;
        scenario->highest_gpu_line = line;
    }
    if (strncmp(rest, "call.", 5) == 0) {
        add_call_rule(scenario, gpu == ANY_GPU ? EVERY_GPU : (int)gpu, rest + 5, text, line);
    } else if (strncmp(rest, "field.", 6) == 0) {
        add_field_rule(scenario, (int)gpu, rest + 6, text, line);
    } else {
        const struct key *key = find_key(rest);
        if (key == NULL)
            fake_abort(line, "unknown key \"gpu.%s.%s\"", which, rest);
        struct value *value = &scenario->rows[1 + gpu][key->column];
        value_free(value);
        *value = value_parse(key, text, line);
    }
}

static void parse_line(struct scenario *scenario, char *key, const char *text, int line)
{
    long long number;
    if (strncmp(key, "gpu.", 4) == 0) {
        parse_gpu_line(scenario, key + 4, text, line);
    } else if (strncmp(key, "call.", 5) == 0) {
        add_call_rule(scenario, ANY_GPU, key + 5, text, line);
    } else if (strcmp(key, "count") == 0) {
        if (!parse_integer(text, &number) || number < 0 || number > MAX_GPUS)
            fake_abort(line, "count is 0 to %d, not \"%s\"", MAX_GPUS, text);
        scenario->count = (unsigned int)number;
    } else if (strcmp(key, "cuda") == 0) {
        if (!parse_integer(text, &number) || number <= 0)
            fake_abort(line, "cuda is a number such as 12080, not \"%s\"", text);
        scenario->cuda = (int)number;
    } else if (strcmp(key, "driver") == 0) {
        snprintf(scenario->driver, sizeof scenario->driver, "%s", text);
    } else if (strcmp(key, "nvml") == 0) {
        snprintf(scenario->nvml, sizeof scenario->nvml, "%s", text);
    } else {
        fake_abort(line, "unknown key \"%s\"", key);
    }
}

static struct value default_value(const struct key *key, unsigned int gpu)
{
    char text[TEXT_SIZE];
    if (key->fallback == NULL)
        return (struct value){.state = ABSENT};
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, key->fallback, gpu + key->index_offset);
#pragma GCC diagnostic pop
    return value_parse(key, text, 0);
}

static struct value copy_value(const struct value *value)
{
    struct value copy = *value;
    copy.text = value->text ? strdup(value->text) : NULL;
    if (value->processes != NULL) {
        copy.processes = calloc(value->process_count, sizeof *copy.processes);
        memcpy(copy.processes, value->processes, value->process_count * sizeof *copy.processes);
    }
    return copy;
}

/* What gpu.N did not say: gpu.* says it, otherwise the default, which may be another key's value. */
static void fill_in(struct scenario *scenario, unsigned int gpu)
{
    struct value *row = scenario->rows[1 + gpu];
    for (size_t i = 0; i < key_count(); i++) {
        const struct key *key = __start_fake_keys[i];
        const bool is_alias = key->fallback != NULL && key->fallback[0] == '=';
        if (row[i].state == ABSENT && scenario->rows[0][i].state != ABSENT)
            row[i] = copy_value(&scenario->rows[0][i]);
        else if (row[i].state == ABSENT && !is_alias)
            row[i] = default_value(key, gpu);
    }
    for (size_t i = 0; i < key_count(); i++) {
        const struct key *key = __start_fake_keys[i];
        if (row[i].state == ABSENT && key->fallback != NULL && key->fallback[0] == '=')
            row[i] = copy_value(&row[find_key(key->fallback + 1)->column]);
    }
}

struct scenario *scenario_parse(char *content)
{
    struct scenario *scenario = calloc(1, sizeof *scenario);
    *scenario = (struct scenario){.count = 1, .cuda = 13000, .driver = "580.95.05", .highest_gpu = -1};
    for (int i = 0; i < 1 + MAX_GPUS; i++)
        scenario->rows[i] = calloc(key_count(), sizeof(struct value));
    int line = 0;
    for (char *text; (text = strsep(&content, "\n")) != NULL;) {
        line++;
        cut_comment(text);
        text = trimmed(text);
        if (*text == '\0')
            continue;
        char *value = strchr(text, '=');
        if (value == NULL)
            fake_abort(line, "\"%s\" is not KEY = VALUE", text);
        *value++ = '\0';
        parse_line(scenario, trimmed(text), trimmed(value), line);
    }
    if (scenario->highest_gpu >= (int)scenario->count)
        fake_abort(scenario->highest_gpu_line, "gpu.%d, but count = %u", scenario->highest_gpu,
                   scenario->count);
    if (scenario->nvml[0] == '\0')
        snprintf(scenario->nvml, sizeof scenario->nvml, "%d.%.200s", atoi(scenario->driver) < 580 ? 12 : 13,
                 scenario->driver);
    for (unsigned int gpu = 0; gpu < scenario->count; gpu++)
        fill_in(scenario, gpu);
    return scenario;
}

void scenario_free(struct scenario *scenario)
{
    for (int i = 0; i < 1 + MAX_GPUS; i++) {
        for (size_t column = 0; column < key_count(); column++)
            value_free(&scenario->rows[i][column]);
        free(scenario->rows[i]);
    }
    for (size_t i = 0; i < scenario->call_rule_count; i++)
        free(scenario->call_rules[i].function);
    free(scenario->call_rules);
    free(scenario->field_rules);
    free(scenario);
}
