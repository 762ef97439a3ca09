/* A worker that prints numbered lines as fast as stdio lets it.
 *
 *     flood_worker CHANNEL LINES BYTES [line]
 *
 * Every line is `<rank> <number> <filling>`, BYTES long with its newline, so that a reader can tell whether each
 * came through whole and once. Fully buffered, or by the line with `line`. Stamps `start` and `end`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stamp.h"

#define LINE_BYTES_MAX 65536
#define STREAM_BUFFER_BYTES 4096

int main(int argc, char **argv) {
    int64_t start_ns = stamp_now_ns();
    if (argc < 4) {
        fputs("usage: flood_worker CHANNEL LINES BYTES [line]\n", stderr);
        return 2;
    }
    int channel = stamp_open(argv[1]);
    long line_count = strtol(argv[2], NULL, 10);
    long line_bytes = strtol(argv[3], NULL, 10);
    if (channel < 0 || line_bytes < 24 || line_bytes > LINE_BYTES_MAX) {
        fputs("flood_worker: channel cannot be opened, or BYTES is not in 24..65536\n", stderr);
        return 2;
    }
    const char *rank = getenv("RANK");
    static char stream_buffer[STREAM_BUFFER_BYTES];
    setvbuf(stdout, stream_buffer, argc > 4 ? _IOLBF : _IOFBF, sizeof stream_buffer);
    stamp_write(channel, "start", start_ns, "");
    static char line[LINE_BYTES_MAX + 1];
    for (long i = 0; i < line_count; i++) {
        int used = snprintf(line, sizeof line, "%s %ld ", rank ? rank : "-", i);
        memset(line + used, 'a' + (int)(i % 26), (size_t)(line_bytes - used));
        line[line_bytes - 1] = '\n';
        if (fwrite(line, 1, (size_t)line_bytes, stdout) != (size_t)line_bytes) {
            return 1;
        }
    }
    if (fflush(stdout) != 0) {
        return 1;
    }
    stamp_write(channel, "end", stamp_now_ns(), "");
    return 0;
}
