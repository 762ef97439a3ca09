/* Time that a process spent away; see absence.h. */
#include "base/absence.h"

void absence_init(struct absence *absence, int64_t now_ms) {
    *absence = (struct absence){.due_ms = now_ms, .woke_ms = INT64_MIN};
}

/* What is left to be listened for after the absence before is not shortened by a further one. */
static void note(struct absence *absence, int64_t now_ms, int64_t late_ms) {
    int64_t asked_ms = late_ms < ABSENCE_LONG_MS && absence->was_short ? 0 : late_ms;
    absence->away_ms += late_ms;
    absence->was_short = late_ms < ABSENCE_LONG_MS;
    int64_t clock_ms = absence_clock_ms(absence, now_ms);
    int64_t left_ms = absence->length_ms > 0 ? absence->length_ms - (clock_ms - absence->woke_ms) : 0;
    if (asked_ms > 0) {
        absence->length_ms = asked_ms > left_ms ? asked_ms : left_ms;
        absence->woke_ms = clock_ms;
    }
}

void absence_look(struct absence *absence, int64_t now_ms) {
    if (absence->due_ms < now_ms && now_ms - absence->due_ms > ABSENCE_TOLERANCE_MS) {
        note(absence, now_ms, now_ms - absence->due_ms);
    } else if (now_ms > absence->due_ms) {
        absence->was_short = false;
    }
    absence->due_ms = now_ms;
}

void absence_wait(struct absence *absence, int64_t now_ms, int64_t due_ms) {
    absence_look(absence, now_ms);
    absence->due_ms = due_ms > now_ms ? due_ms : now_ms;
}

int64_t absence_clock_ms(const struct absence *absence, int64_t now_ms) {
    return now_ms - absence->away_ms;
}

int64_t absence_judges_from_ms(const struct absence *absence, int64_t interval_ms) {
    if (absence->length_ms == 0) {
        return INT64_MIN;
    }
    return absence->woke_ms + (absence->length_ms < interval_ms ? absence->length_ms : interval_ms);
}

int64_t absence_ask_ms(int64_t left_ms, int64_t interval_ms) {
    if (left_ms > interval_ms + ABSENCE_TOLERANCE_MS) {
        return left_ms - interval_ms;
    }
    return left_ms < ABSENCE_TOLERANCE_MS ? left_ms : ABSENCE_TOLERANCE_MS;
}
