/* Records of failures, as other nodes write them: what is read is within its limits, and comes back as it was written.
 */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "rendezvous/round/cause.h"

#include <muster/status.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct rdzv_cause first, again;
    char line[RDZV_CAUSE_TEXT_MAX];
    if (rdzv_cause_read((const char *)data, size, &first) != MUSTER_OK) {
        return 0;
    }
    assert(first.wait_status != 0 && first.pid >= 0);
    assert(first.age_us <= RDZV_CAUSE_AGE_MAX_US);
    assert(strpbrk(rdzv_cause_describe(&first, line), "\n\r\x1b") == NULL);
    char *text = rdzv_cause_write(&first);
    if (text) {
        int rc = rdzv_cause_read(text, strlen(text), &again);
        assert(rc == MUSTER_OK && again.rank == first.rank && again.is_told == first.is_told);
        assert(again.age_us == first.age_us || (again.age_us < 0 && first.age_us < 0));
        assert(strcmp(again.host, first.host) == 0 && strcmp(again.words, first.words) == 0);
    }
    free(text);
    return 0;
}
