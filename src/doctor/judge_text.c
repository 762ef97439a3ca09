/* What all judges use: variables looked up, bytes in words; see facts.h and judge.h. Pure. */
#include <string.h>

#include "base/str.h"
#include "doctor/judge.h"

const char *doctor_variable(const struct doctor_environment *environment, const char *name) {
    for (uint32_t i = 0; i < environment->count; i++) {
        if (strcmp(environment->list[i].name, name) == 0) {
            return environment->list[i].value;
        }
    }
    return NULL;
}

const char *doctor_bytes_text(uint64_t bytes, char out[DOCTOR_BYTES_TEXT_MAX]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 1 < sizeof units / sizeof *units; unit++) {
        value /= 1024;
    }
    (void)str_format(out, DOCTOR_BYTES_TEXT_MAX, value < 10 && unit > 0 ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return out;
}
