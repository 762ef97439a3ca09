/* Civil dates; see civil_time.h. Days are counted in the proleptic Gregorian calendar, with the year
 * thought to begin in March so that the leap day is its last. */
#include "rendezvous/torch/civil_time.h"

#define US_PER_S INT64_C(1000000)
#define US_PER_DAY (INT64_C(86400) * US_PER_S)

enum {
    YEAR_MAX = 9999,
    DAYS_PER_ERA = 146097,
    YEARS_PER_ERA = 400,
    EPOCH_DAY = 719468 /* 1970-01-01 from 0000-03-01 */
};

/* Days from 0000-03-01 to a date. */
static int64_t day_number(int64_t year, int64_t month, int64_t day) {
    int64_t shifted_year = month > 2 ? year : year - 1;
    int64_t shifted_month = month > 2 ? month - 3 : month + 9;
    return shifted_year * 365 + shifted_year / 4 - shifted_year / 100 + shifted_year / 400 +
           (153 * shifted_month + 2) / 5 + day - 1;
}

static bool is_leap(int64_t year) {
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

static int64_t days_of_month(int64_t year, int64_t month) {
    static const int8_t days[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    return month == 2 && is_leap(year) ? 29 : days[month - 1];
}

bool civil_time_read(const uint8_t bytes[CIVIL_TIME_BYTES], int64_t *out_us) {
    int64_t year = (int64_t)bytes[0] << 8 | bytes[1];
    int64_t month = bytes[2];
    int64_t day = bytes[3];
    int64_t us = (int64_t)bytes[7] << 16 | (int64_t)bytes[8] << 8 | bytes[9];
    if (year < 1 || year > YEAR_MAX || month < 1 || month > 12 || day < 1 || day > days_of_month(year, month) ||
        bytes[4] > 23 || bytes[5] > 59 || bytes[6] > 59 || us >= US_PER_S) {
        return false;
    }
    int64_t seconds = ((int64_t)bytes[4] * 60 + bytes[5]) * 60 + bytes[6];
    *out_us = (day_number(year, month, day) - EPOCH_DAY) * US_PER_DAY + seconds * US_PER_S + us;
    return true;
}

void civil_time_write(int64_t us, uint8_t bytes[CIVIL_TIME_BYTES]) {
    const int64_t first = (day_number(1, 1, 1) - EPOCH_DAY) * US_PER_DAY;
    const int64_t last = (day_number(YEAR_MAX + 1, 1, 1) - EPOCH_DAY) * US_PER_DAY - 1;
    us = us < first ? first : us > last ? last : us;
    int64_t day = us / US_PER_DAY - (us % US_PER_DAY < 0);
    int64_t rest = us - day * US_PER_DAY;
    int64_t number = day + EPOCH_DAY; /* not negative: year 1 begins after 0000-03-01 */
    int64_t era = number / DAYS_PER_ERA;
    int64_t of_era = number % DAYS_PER_ERA;
    int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t shifted_month = (5 * of_year + 2) / 153;
    int64_t month = shifted_month < 10 ? shifted_month + 3 : shifted_month - 9;
    int64_t year = year_of_era + era * YEARS_PER_ERA + (month <= 2);
    int64_t seconds = rest / US_PER_S;
    int64_t fraction = rest % US_PER_S;
    bytes[0] = (uint8_t)(year >> 8);
    bytes[1] = (uint8_t)year;
    bytes[2] = (uint8_t)month;
    bytes[3] = (uint8_t)(of_year - (153 * shifted_month + 2) / 5 + 1);
    bytes[4] = (uint8_t)(seconds / 3600);
    bytes[5] = (uint8_t)(seconds / 60 % 60);
    bytes[6] = (uint8_t)(seconds % 60);
    bytes[7] = (uint8_t)(fraction >> 16);
    bytes[8] = (uint8_t)(fraction >> 8);
    bytes[9] = (uint8_t)fraction;
}
