/* The list of findings and the table of checks; see finding.h. */
#include "doctor/finding.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/printable.h"
#include "base/status.h"

const char *const doctor_check_names[DOCTOR_CHECK_COUNT] = {
#define CHECK_NAME(id, name, about) name,
    DOCTOR_CHECK_TABLE(CHECK_NAME)
#undef CHECK_NAME
};

const char *const doctor_check_abouts[DOCTOR_CHECK_COUNT] = {
#define CHECK_ABOUT(id, name, about) about,
    DOCTOR_CHECK_TABLE(CHECK_ABOUT)
#undef CHECK_ABOUT
};

const char *const doctor_level_names[DOCTOR_LEVEL_COUNT] = {"ok", "note", "warning", "error"};

static bool check_find(const char *name, size_t length, unsigned *out) {
    for (unsigned i = 0; i < DOCTOR_CHECK_COUNT; i++) {
        if (strlen(doctor_check_names[i]) == length && memcmp(doctor_check_names[i], name, length) == 0) {
            *out = i;
            return true;
        }
    }
    return false;
}

int doctor_checks_parse(const char *text, doctor_checks *out) {
    doctor_checks set = 0;
    for (const char *at = text;; at++) {
        size_t length = strcspn(at, ",");
        unsigned check;
        if (!check_find(at, length, &check)) {
            return status_fail(MUSTER_EINVAL, "'%.*s' is not a check; --list shows them", (int)(length % 100), at);
        }
        set |= DOCTOR_CHECK_BIT(check);
        at += length;
        if (*at == '\0') {
            break;
        }
    }
    *out = set;
    return 0;
}

struct doctor_finding *doctor_find(struct doctor_findings *out, enum doctor_check check, enum doctor_level level,
                                   const char *format, ...) {
    if (out->count == DOCTOR_FINDINGS_MAX) {
        out->omitted_count++;
        out->count--;
    }
    struct doctor_finding *finding = &out->list[out->count++];
    *finding = (struct doctor_finding){.check = check, .level = level};
    va_list args;
    va_start(args, format);
    (void)vsnprintf(finding->what, sizeof finding->what, format, args);
    va_end(args);
    printable_clean(finding->what, strlen(finding->what), false); /* names, variables, what other nodes say */
    return finding;
}

void doctor_advise(struct doctor_finding *finding, const char *format, ...) {
    va_list args;
    va_start(args, format);
    (void)vsnprintf(finding->advice, sizeof finding->advice, format, args);
    va_end(args);
    printable_clean(finding->advice, strlen(finding->advice), false);
}

size_t doctor_count(const struct doctor_findings *findings, enum doctor_level level) {
    size_t count = 0;
    for (size_t i = 0; i < findings->count; i++) {
        count += findings->list[i].level == level;
    }
    return count;
}

enum doctor_level doctor_worst(const struct doctor_findings *findings, enum doctor_check check) {
    enum doctor_level worst = DOCTOR_OK;
    for (size_t i = 0; i < findings->count; i++) {
        const struct doctor_finding *finding = &findings->list[i];
        if (finding->check == check && finding->level > worst) {
            worst = finding->level;
        }
    }
    return worst;
}
