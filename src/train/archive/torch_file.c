/* torch.save files: a zip archive with a pickle, in which each tensor is a call that names a storage, sizes and
 * strides, and an entry for each storage. See archive_impl.h. */
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "base/status.h"
#include "train/archive/torch_file_impl.h"

enum { PICKLE_VALUES_MAX = 16 << 20 };
#define BYTE_ORDER_BYTES_MAX 16

/* The one folder that all entries lie in is that of its data.pkl. */
static int find_folder(struct torch_file *t) {
    for (size_t i = 0; i < t->zip.count; i++) {
        const char *slash = strchr(t->zip.entries[i].name, '/');
        if (slash && strcmp(slash, "/data.pkl") == 0) {
            size_t length = (size_t)(slash + 1 - t->zip.entries[i].name);
            if (t->folder[0] != '\0') {
                return status_fail(MUSTER_ECORRUPT, "its zip archive has two entries data.pkl");
            }
            memcpy(t->folder, t->zip.entries[i].name, length);
            t->folder[length] = '\0';
        }
    }
    return t->folder[0] != '\0'
               ? 0
               : status_fail(MUSTER_EUNSUPPORTED, "its zip archive has no entry data.pkl: it is not of torch.save");
}

static int read_entry(const struct torch_file *t, const struct zip_entry *entry, uint64_t most, uint8_t **out) {
    int code = archive_read_new(t->archive, t->file, entry->data_at, entry->bytes, most, out);
    if (code == 0 && entry->crc != 0 && crc32_add(&t->archive->crc, 0, *out, (size_t)entry->bytes) != entry->crc) {
        free(*out);
        *out = NULL;
        code = status_fail(MUSTER_ECORRUPT, "it is damaged: the checksum does not fit");
    }
    return code ? status_prefix(code, "its entry %s", entry->name) : 0;
}

static int check_byte_order(const struct torch_file *t) {
    const struct zip_entry *entry = zip_find_in(&t->zip, t->folder, "byteorder");
    uint8_t *order = NULL;
    if (!entry) {
        return 0; /* before PyTorch 2.1; all of those machines that matter are little-endian */
    }
    int code = read_entry(t, entry, BYTE_ORDER_BYTES_MAX, &order);
    if (code == 0 && strcmp((const char *)order, "little") != 0) {
        printable_clean((char *)order, strlen((const char *)order), false);
        code =
            status_fail(MUSTER_EUNSUPPORTED, "its byte order is \"%s\"; only \"little\" is read", (const char *)order);
    }
    free(order);
    return code;
}

static int torch_open(struct torch_file *t, uint64_t base, uint64_t bytes) {
    int code = zip_read(t->archive, t->file, base, bytes, &t->zip);
    code = code ? code : find_folder(t);
    code = code ? code : check_byte_order(t);
    const struct zip_entry *entry = code ? NULL : zip_find_in(&t->zip, t->folder, "data.pkl");
    code = code ? code : read_entry(t, entry, ARCHIVE_PICKLE_BYTES_MAX, &t->pickle);
    return code ? code : unpickle(t->pickle, (size_t)entry->bytes, torch_classes, PICKLE_VALUES_MAX, &t->tree);
}

static void torch_close(struct torch_file *t) {
    unpickled_done(&t->tree);
    free(t->pickle);
    zip_done(&t->zip);
}

/* ---- what others see ---- */

int torch_file_read(struct archive *archive, uint32_t file, uint64_t base, uint64_t bytes, const char *prefix) {
    struct torch_file t = {.archive = archive, .file = file};
    int code = torch_open(&t, base, bytes);
    code = code ? code : torch_walk(&t, &t.tree.root, prefix);
    torch_close(&t);
    return code;
}

int torch_file_read_tensor(struct archive *archive, uint32_t file, uint64_t base, uint64_t bytes,
                           struct torch_tensor *out) {
    struct torch_file t = {.archive = archive, .file = file};
    struct torch_call call;
    int code = torch_open(&t, base, bytes);
    if (code == 0) {
        code = torch_find_call(&t, &t.tree.root, &call) ? torch_read_tensor(&t, &call, out)
                                                        : status_fail(MUSTER_ECORRUPT, "what is saved is no tensor");
    }
    torch_close(&t);
    return code;
}
