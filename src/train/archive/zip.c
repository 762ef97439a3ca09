/* See zip.h. */
#include "train/archive/zip.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/status.h"
#include "base/utf8.h"

enum {
    END_BYTES = 22,
    END_SIGNATURE = 0x06054b50,
    LOCATOR_BYTES = 20,
    LOCATOR_SIGNATURE = 0x07064b50,
    END64_BYTES = 56,
    END64_SIGNATURE = 0x06064b50,
    CENTRAL_BYTES = 46,
    CENTRAL_SIGNATURE = 0x02014b50,
    LOCAL_BYTES = 30,
    LOCAL_SIGNATURE = 0x04034b50,
    EXTRA_ZIP64 = 1,
    FLAG_ENCRYPTED = 1 | 1 << 6 | 1 << 13,
    METHOD_STORED = 0,
};

/* Where the directory lies, from the beginning of the archive. */
struct directory {
    uint64_t at, bytes, entries;
};

/* The archive under its directory's eyes. */
struct reading {
    struct archive *archive;
    uint32_t file;
    uint64_t base, bytes;
    struct directory directory;
    struct zip zip;
};

static int fetch(const struct reading *r, uint64_t at, void *out, uint64_t count) {
    if (at > r->bytes || count > r->bytes - at) {
        return status_fail(MUSTER_ECORRUPT, "the zip archive ends early");
    }
    return archive_read(r->archive, r->file, r->base + at, out, count);
}

int zip_is_one(struct archive *archive, uint32_t file, bool *out) {
    static const uint8_t magic[] = {'P', 'K', 3, 4};
    uint8_t bytes[sizeof magic] = {0};
    uint64_t count = archive->files[file].bytes < sizeof bytes ? archive->files[file].bytes : sizeof bytes;
    int code = archive_read(archive, file, 0, bytes, count);
    *out = code == 0 && memcmp(bytes, magic, sizeof magic) == 0;
    return code;
}

/* ---- the end, which tells where the directory is ---- */

/* A number that does not fit into the older record stands in the newer one, which PyTorch always writes. */
static int read_end64(struct reading *r) {
    uint8_t locator[LOCATOR_BYTES], end[END64_BYTES];
    struct bytes_reader l = {.data = locator, .size = sizeof locator}, e = {.data = end, .size = sizeof end};
    uint64_t locator_at = r->bytes - END_BYTES - LOCATOR_BYTES;
    if (r->bytes < END_BYTES + LOCATOR_BYTES + END64_BYTES || fetch(r, locator_at, locator, sizeof locator) != 0 ||
        bytes_get_number(&l, 4) != LOCATOR_SIGNATURE) {
        return 0; /* there is none */
    }
    (void)bytes_get_number(&l, 4); /* the disk */
    uint64_t at = bytes_get_number(&l, 8);
    int code = fetch(r, at, end, sizeof end);
    if (code) {
        return code;
    }
    if (bytes_get_number(&e, 4) != END64_SIGNATURE || at + END64_BYTES > locator_at) {
        return status_fail(MUSTER_ECORRUPT, "the zip archive's end is damaged");
    }
    (void)bytes_get(&e, 8 + 2 + 2 + 4 + 4 + 8); /* sizes, versions, disks, entries of this disk */
    r->directory.entries = bytes_get_number(&e, 8);
    r->directory.bytes = bytes_get_number(&e, 8);
    r->directory.at = bytes_get_number(&e, 8);
    return 0;
}

static int read_end(struct reading *r) {
    uint8_t end[END_BYTES];
    struct bytes_reader e = {.data = end, .size = sizeof end};
    if (r->bytes < END_BYTES) {
        return status_fail(MUSTER_ECORRUPT, "it is too short for a zip archive");
    }
    int code = fetch(r, r->bytes - END_BYTES, end, sizeof end);
    if (code) {
        return code;
    }
    if (bytes_get_number(&e, 4) != END_SIGNATURE) {
        return status_fail(MUSTER_ECORRUPT, "it does not end as a zip archive of PyTorch's: it is cut off, or has more "
                                            "behind its end");
    }
    (void)bytes_get(&e, 2 + 2 + 2); /* disks, entries of this disk */
    r->directory.entries = bytes_get_number(&e, 2);
    r->directory.bytes = bytes_get_number(&e, 4);
    r->directory.at = bytes_get_number(&e, 4);
    code = read_end64(r);
    const struct directory *d = &r->directory;
    if (code == 0 && (d->at > r->bytes || d->bytes > r->bytes - d->at)) {
        return status_fail(MUSTER_ECORRUPT, "the zip archive's directory leaves the archive");
    }
    if (code == 0 &&
        (d->entries > ZIP_ENTRIES_MAX || d->bytes > ZIP_DIRECTORY_BYTES_MAX || d->entries > d->bytes / CENTRAL_BYTES)) {
        return status_fail(MUSTER_ELIMIT, "the zip archive says that it has %" PRIu64 " entries in %" PRIu64 " bytes",
                           d->entries, d->bytes);
    }
    return code;
}

/* ---- entries ---- */

static int bad(const struct zip_entry *entry, int code, const char *what) {
    return status_fail(code, "its entry %s %s", entry->name, what);
}

/* Relative, of plain parts, printable. */
static bool is_good_name(const char *name) {
    for (const char *part = name;; part++) {
        size_t length = strcspn(part, "/");
        if (length == 0 || (length == 1 && part[0] == '.') || (length == 2 && memcmp(part, "..", 2) == 0)) {
            return false;
        }
        for (size_t i = 0; i < length; i++) {
            if ((unsigned char)part[i] < 0x20 || part[i] == 0x7f || part[i] == '\\') {
                return false;
            }
        }
        part += length;
        if (*part == '\0') {
            return utf8_is_valid(name);
        }
    }
}

static int take_name(struct bytes_reader *d, size_t length, char **names, struct zip_entry *entry) {
    const uint8_t *bytes = bytes_get(d, length);
    if (!bytes || length == 0 || length > ZIP_NAME_MAX) {
        return status_fail(MUSTER_ECORRUPT, "an entry of its directory has no name, or one that is too long");
    }
    memcpy(*names, bytes, length);
    (*names)[length] = '\0';
    entry->name = *names;
    *names += length + 1;
    if (memchr(bytes, 0, length) || !is_good_name(entry->name)) {
        return status_fail(MUSTER_ECORRUPT,
                           "an entry of its directory has a name that is absolute, leaves the archive, "
                           "or cannot be shown");
    }
    return 0;
}

/* Numbers that are all ones stand in the extra field, in this order. */
static int take_extra(struct bytes_reader *d, size_t length, const struct zip_entry *entry, uint64_t *numbers[3]) {
    struct bytes_reader extra = {.data = bytes_get(d, length), .size = length, .overrun = d->overrun};
    while (!extra.overrun && extra.used < extra.size) {
        uint64_t id = bytes_get_number(&extra, 2), size = bytes_get_number(&extra, 2);
        struct bytes_reader field = {.data = bytes_get(&extra, size), .size = size, .overrun = extra.overrun};
        for (size_t i = 0; id == EXTRA_ZIP64 && i < 3 && !field.overrun; i++) {
            if (*numbers[i] == UINT32_MAX) {
                *numbers[i] = bytes_get_number(&field, 8);
            }
        }
        extra.overrun = extra.overrun || field.overrun;
    }
    return extra.overrun ? bad(entry, MUSTER_ECORRUPT, "has a damaged extra field") : 0;
}

static int take_entry(const struct reading *r, struct bytes_reader *d, char **names, struct zip_entry *entry) {
    bool is_entry = bytes_get_number(d, 4) == CENTRAL_SIGNATURE;
    (void)bytes_get(d, 2 + 2); /* versions */
    uint64_t flags = bytes_get_number(d, 2), method = bytes_get_number(d, 2);
    (void)bytes_get(d, 4); /* date */
    entry->crc = (uint32_t)bytes_get_number(d, 4);
    uint64_t packed = bytes_get_number(d, 4);
    entry->bytes = bytes_get_number(d, 4);
    size_t name_length = bytes_get_number(d, 2), extra = bytes_get_number(d, 2), comment = bytes_get_number(d, 2);
    (void)bytes_get(d, 2 + 2 + 4); /* disk, attributes */
    entry->at = bytes_get_number(d, 4);
    if (!is_entry || d->overrun) {
        return status_fail(MUSTER_ECORRUPT, "the zip archive's directory is damaged");
    }
    int code = take_name(d, name_length, names, entry);
    uint64_t *numbers[3] = {&entry->bytes, &packed, &entry->at};
    code = code ? code : take_extra(d, extra, entry, numbers);
    (void)bytes_get(d, comment);
    if (code) {
        return code;
    }
    if (flags & FLAG_ENCRYPTED) {
        return bad(entry, MUSTER_EUNSUPPORTED, "is encrypted");
    }
    if (method != METHOD_STORED || packed != entry->bytes) {
        return bad(entry, MUSTER_EUNSUPPORTED, "is compressed, which torch.save never does");
    }
    return entry->at < r->directory.at ? 0 : bad(entry, MUSTER_ECORRUPT, "begins behind the directory");
}

/* The header in front of the data must be of the same entry; it tells where the data begins. Sizes may be missing in
 * it. */
static int check_local(const struct reading *r, struct zip_entry *entry) {
    uint8_t header[LOCAL_BYTES + ZIP_NAME_MAX];
    size_t name_length = strlen(entry->name);
    struct bytes_reader h = {.data = header, .size = LOCAL_BYTES + name_length};
    int code = fetch(r, entry->at, header, h.size);
    if (code) {
        return code;
    }
    bool is_local = bytes_get_number(&h, 4) == LOCAL_SIGNATURE;
    (void)bytes_get_number(&h, 2); /* version */
    uint64_t flags = bytes_get_number(&h, 2), method = bytes_get_number(&h, 2);
    (void)bytes_get(&h, 4 + 4 + 4 + 4); /* date, checksum, sizes */
    uint64_t length = bytes_get_number(&h, 2), extra = bytes_get_number(&h, 2);
    if (!is_local || length != name_length || memcmp(header + LOCAL_BYTES, entry->name, name_length) != 0 ||
        method != METHOD_STORED || (flags & FLAG_ENCRYPTED)) {
        return bad(entry, MUSTER_ECORRUPT, "is described in two ways");
    }
    uint64_t data_at = entry->at + LOCAL_BYTES + length + extra;
    if (data_at > r->directory.at || entry->bytes > r->directory.at - data_at) {
        return bad(entry, MUSTER_ECORRUPT, "is larger than the archive");
    }
    entry->data_at = r->base + data_at;
    return 0;
}

static int by_place(const void *left, const void *right) {
    const struct zip_entry *a = left, *b = right;
    return a->at < b->at ? -1 : a->at > b->at;
}

static int by_name(const void *left, const void *right) {
    return strcmp(((const struct zip_entry *)left)->name, ((const struct zip_entry *)right)->name);
}

static int check_entries(struct reading *r) {
    struct zip *zip = &r->zip;
    qsort(zip->entries, zip->count, sizeof *zip->entries, by_place);
    for (size_t i = 0; i < zip->count; i++) {
        struct zip_entry *entry = &zip->entries[i];
        int code = check_local(r, entry);
        if (code) {
            return code;
        }
        if (i > 0 && r->base + entry->at < entry[-1].data_at + entry[-1].bytes) {
            return bad(entry, MUSTER_ECORRUPT, "overlaps another");
        }
    }
    qsort(zip->entries, zip->count, sizeof *zip->entries, by_name);
    for (size_t i = 1; i < zip->count; i++) {
        if (strcmp(zip->entries[i].name, zip->entries[i - 1].name) == 0) {
            return bad(&zip->entries[i], MUSTER_ECORRUPT, "is there twice");
        }
    }
    return 0;
}

static int read_directory(struct reading *r) {
    uint8_t *bytes = NULL;
    struct zip *zip = &r->zip;
    int code = archive_read_new(r->archive, r->file, r->base + r->directory.at, r->directory.bytes,
                                ZIP_DIRECTORY_BYTES_MAX, &bytes);
    if (code) {
        return code;
    }
    zip->count = (size_t)r->directory.entries;
    zip->entries = calloc(zip->count + 1, sizeof *zip->entries);
    zip->names = malloc((size_t)r->directory.bytes + 1);
    code = zip->entries && zip->names ? 0 : status_fail(MUSTER_ENOMEM, "no memory for the directory of a zip archive");
    char *names = zip->names;
    struct bytes_reader d = {.data = bytes, .size = (size_t)r->directory.bytes};
    for (size_t i = 0; i < zip->count && code == 0; i++) {
        code = take_entry(r, &d, &names, &zip->entries[i]);
    }
    if (code == 0 && (d.overrun || d.used != d.size)) {
        code = status_fail(MUSTER_ECORRUPT, "the zip archive's directory is damaged");
    }
    free(bytes);
    return code ? code : check_entries(r);
}

int zip_read(struct archive *archive, uint32_t file, uint64_t base, uint64_t bytes, struct zip *out) {
    struct reading r = {.archive = archive, .file = file, .base = base, .bytes = bytes};
    int code = read_end(&r);
    code = code ? code : read_directory(&r);
    if (code) {
        zip_done(&r.zip);
        return code;
    }
    *out = r.zip;
    return 0;
}

static int by_key(const void *name, const void *entry) {
    return strcmp(name, ((const struct zip_entry *)entry)->name);
}

const struct zip_entry *zip_find_in(const struct zip *zip, const char *folder, const char *name) {
    char full[2 * ZIP_NAME_MAX];
    int length = snprintf(full, sizeof full, "%s%s", folder, name);
    bool fits = length > 0 && (size_t)length < sizeof full;
    return fits && zip->count > 0 ? bsearch(full, zip->entries, zip->count, sizeof *zip->entries, by_key) : NULL;
}

void zip_done(struct zip *zip) {
    free(zip->entries);
    free(zip->names);
    *zip = (struct zip){.count = 0};
}
