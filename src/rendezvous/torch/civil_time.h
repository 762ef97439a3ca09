/* Calendar dates of UTC and microseconds since 1970, without the C library's time zones. */
#ifndef RENDEZVOUS_CIVIL_TIME_H
#define RENDEZVOUS_CIVIL_TIME_H

#include <stdbool.h>
#include <stdint.h>

#define CIVIL_TIME_BYTES 10 /* Python's datetime: year (2, big-endian), month, day, hour, minute, second, us (3) */

/* False when a field is out of range (years 1 to 9999). */
bool civil_time_read(const uint8_t bytes[CIVIL_TIME_BYTES], int64_t *out_us);
/* Times outside years 1 to 9999 are moved to the nearer end. */
void civil_time_write(int64_t us, uint8_t bytes[CIVIL_TIME_BYTES]);

#endif
