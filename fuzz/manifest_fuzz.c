/* Fuzzes the reader of manifests: the input as it is, and with a checksum that fits, which lets it past the first
 * check. Names of files are tried on the way. */
#include <assert.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/state/checksum.h"
#include "train/state/snapshot_manifest.h"

enum { TRAILER_BYTES = 37 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void decode(const uint8_t *data, size_t size) {
    struct snapshot_manifest manifest;
    int64_t integer = 0;
    double real = 0;
    char text[64] = "";
    uint64_t checksum = 0;
    int code = snapshot_manifest_decode(data, size, &manifest);
    if (code) {
        assert((code == MUSTER_ECORRUPT || code == MUSTER_ELIMIT || code == MUSTER_EUNSUPPORTED) &&
               muster_detail()[0] != '\0');
        return;
    }
    struct muster_value values[] = {muster_value_integer("epoch", &integer), muster_value_real("loss", &real),
                                    muster_value_text("note", text, sizeof text)};
    assert(manifest.step >= 0 && manifest.id != 0);
    for (size_t i = 0; i < 3; i++) {
        code = snapshot_manifest_values(&manifest, &values[i], 1, true);
        assert(code == 0 || (code == MUSTER_EINVAL && muster_detail()[0] != '\0'));
    }
    assert(memchr(text, '\0', sizeof text));
    (void)snapshot_manifest_tensor(&manifest, "w", &checksum);
    snapshot_manifest_done(&manifest);
}

static void parse_name(const uint8_t *data, size_t size) {
    char name[2 * SNAPSHOT_NAME_MAX] = "", again[SNAPSHOT_NAME_MAX] = "";
    memcpy(name, data, size < sizeof name ? size : sizeof name - 1);
    struct snapshot_name parsed = snapshot_name_parse(name);
    if (parsed.kind == SNAPSHOT_DATA) {
        snapshot_name_data(again, parsed.step, parsed.checksum);
        assert(strcmp(name, again) == 0);
    } else if (parsed.kind == SNAPSHOT_MANIFEST) {
        snapshot_name_manifest(again, parsed.step);
        assert(strcmp(name, again) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    decode(data, size);
    parse_name(data, size);
    size_t checked = size > TRAILER_BYTES ? size - TRAILER_BYTES : 0;
    char *fitting = malloc(checked + TRAILER_BYTES + 1);
    if (!fitting) {
        return 0;
    }
    if (checked > 0) {
        memcpy(fitting, data, checked);
    }
    (void)snprintf(fitting + checked, TRAILER_BYTES + 1, ",\n  \"checksum\": \"%016" PRIx64 "\"\n}\n",
                   checksum_of(fitting, checked));
    decode((const uint8_t *)fitting, checked + TRAILER_BYTES);
    free(fitting);
    return 0;
}
