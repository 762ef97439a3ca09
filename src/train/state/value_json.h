/* The values of a state as members of a JSON object: integers without a point, real numbers with one or as "nan",
 * "inf",
 * "-inf", texts as texts. Pure. */
#ifndef TRAIN_VALUE_JSON_H
#define TRAIN_VALUE_JSON_H

#include <stdbool.h>
#include <stddef.h>

#include <muster/snapshot.h>

struct json_t;

/* Adds all values. MUSTER_EINVAL, MUSTER_ELIMIT: a value that cannot be saved, by its name; MUSTER_ENOMEM. */
int value_json_add(struct json_t *object, const struct muster_value *values, size_t count);

/* Checks that all values are there, but optional ones, and fit (MUSTER_EINVAL names the one that does not); with
 * `copy`, copies them. */
int value_json_read(const struct json_t *object, const struct muster_value *values, size_t count, bool copy);

#endif
