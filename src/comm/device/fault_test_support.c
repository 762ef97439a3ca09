/* Faults at chosen calls of the doubles; see fault_test_support.h. */
#include "comm/device/fault_test_support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void fault_pause_us(unsigned us) {
    struct timespec pause = {.tv_sec = us / 1000000, .tv_nsec = (long)(us % 1000000) * 1000};
    (void)nanosleep(&pause, NULL);
}

static enum fault_kind fault_kind_of(const char *word) {
    static const char *const words[] = {"none", "error", "fail", "hang", "stick", "die", "delay"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strcmp(word, words[i]) == 0) {
            return (enum fault_kind)i;
        }
    }
    (void)fprintf(stderr, "a double: no fault is called '%s'\n", word);
    abort();
}

static void faults_parse(struct faults *faults, const char *text) {
    while (text && *text && faults->count < FAULTS_MAX) {
        char word[16] = "";
        struct fault_rule *rule = &faults->rules[faults->count++];
        if (sscanf(text, "%15[^:]:%47[^:]:%u:%u", word, rule->function, &rule->number, &rule->value) < 3) { /* NOLINT */
            (void)fprintf(stderr, "a double: '%s' is no rule\n", text);
            abort();
        }
        rule->kind = fault_kind_of(word);
        text = strchr(text, ',');
        text = text ? text + 1 : NULL;
    }
}

static void faults_read(struct faults *faults) {
    int fresh = 0;
    if (atomic_load(&faults->state) == 2) {
        return;
    }
    if (atomic_compare_exchange_strong(&faults->state, &fresh, 1)) {
        faults_parse(faults, getenv(faults->variable));
        atomic_store(&faults->state, 2);
    }
    while (atomic_load(&faults->state) != 2) {
        fault_pause_us(100); /* another thread reads it at this moment */
    }
}

struct fault fault_call(struct faults *faults, const char *function) {
    struct fault fault = {FAULT_NONE, 0};
    faults_read(faults);
    for (unsigned i = 0; i < faults->count; i++) {
        struct fault_rule *rule = &faults->rules[i];
        if ((strcmp(rule->function, "*") != 0 && strcmp(rule->function, function) != 0) ||
            (atomic_fetch_add(&rule->calls, 1) + 1 != rule->number && rule->number != 0)) {
            continue;
        }
        if (rule->kind == FAULT_DIE) {
            (void)raise(SIGKILL);
        }
        while (rule->kind == FAULT_HANG) {
            (void)pause();
        }
        if (rule->kind == FAULT_DELAY) {
            fault_pause_us(rule->value);
            continue;
        }
        fault = (struct fault){rule->kind, rule->value};
    }
    return fault;
}
