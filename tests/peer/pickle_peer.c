/* Reads rendezvous states as the store holds them, one base64 text a line, and writes each again in our own form: the
 * C half of test_pickle.py. A state that is refused prints "error: <why>". */
#include <stdio.h>
#include <stdlib.h>

#include "rendezvous/torch/pickle.h"

#include <muster/status.h>

int main(void) {
    char *line = NULL;
    size_t capacity = 0;
    struct rdzv_state state;
    struct buf text;
    rdzv_state_init(&state);
    buf_init(&text, PICKLE_BYTES_MAX);
    for (ssize_t len; (len = getline(&line, &capacity, stdin)) >= 0;) {
        buf_clear(&text);
        if (pickle_read_text((const uint8_t *)line, (size_t)len, &state) != MUSTER_OK ||
            pickle_write_text(&state, &text) != MUSTER_OK) {
            (void)printf("error: %s\n", muster_detail());
        } else {
            (void)printf("%.*s\n", (int)text.len, (const char *)buf_bytes(&text));
        }
    }
    buf_done(&text);
    rdzv_state_done(&state);
    free(line);
    return 0;
}
