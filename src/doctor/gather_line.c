/* Reading small files of the kernel's; see gather_impl.h. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "doctor/gather_impl.h"

bool doctor_read_line(char *out, size_t size, const char *format, ...) {
    char path[DOCTOR_PATH_MAX];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(path, sizeof path, format, args);
    va_end(args);
    out[0] = '\0';
    FILE *file = n > 0 && (size_t)n < sizeof path ? fopen(path, "re") : NULL;
    bool fine = file && fgets(out, (int)size, file);
    if (file) {
        (void)fclose(file);
    }
    out[strcspn(out, "\n")] = '\0';
    return fine;
}
