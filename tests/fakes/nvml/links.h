/*
 * Inside the fake NVML: values of single NVLinks.
 *
 * A key of links is a TEXT: "1, 1, 0, 1" is the value of links 0, 1, 2 and of all from 3 on. An item may be
 * "unsupported".
 */
#ifndef FAKE_NVML_LINKS_H
#define FAKE_NVML_LINKS_H

#include "fake.h"

enum { EVERY_LINK = -1 };
static const unsigned int ALL_LINKS = 0xffffffff; /* the scope that sums all links */

struct link_field {
    unsigned int id;
    const struct key *key;
    int value_type;
    int link; /* of an id that belongs to one link; EVERY_LINK: the scope says which */
    bool can_sum;
};

#define LINK_FIELD(id_, key_, value_type_, ...)                                                          \
    static struct link_field link_field_##id_ = {.id = id_, .key = &key_, .value_type = value_type_, __VA_ARGS__}; \
    REGISTER("fake_link_fields", struct link_field, link_field_##id_)

extern struct link_field *__start_fake_link_fields[], *__stop_fake_link_fields[];

unsigned int link_count(int gpu);
nvmlReturn_t link_text(int gpu, const struct key *key, unsigned int link, char out[TEXT_SIZE]);
nvmlReturn_t link_number(int gpu, const struct key *key, unsigned int link, long long *out);
nvmlReturn_t link_field_number(int gpu, const struct link_field *field, unsigned int scope, long long *out);

#endif
