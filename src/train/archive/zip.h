/* The directory of a zip archive as PyTorch writes them: entries that are stored, neither compressed nor encrypted.
 * (APPNOTE.TXT of PKWARE has the format.) Anything else is refused, with a sentence that names the entry, and so is
 * what no honest writer makes: names that leave the folder or occur twice, entries that overlap or leave the archive.
 */
#ifndef TRAIN_ZIP_H
#define TRAIN_ZIP_H

#include "train/archive/archive_impl.h"

#define ZIP_ENTRIES_MAX ((uint64_t)1 << 20)
#define ZIP_DIRECTORY_BYTES_MAX ((uint64_t)128 << 20)
enum { ZIP_NAME_MAX = 512 };

struct zip_entry {
    const char *name;
    uint64_t at;      /* of its local header */
    uint64_t data_at; /* in the file, not in the archive */
    uint64_t bytes;
    uint32_t crc; /* of the data; 0: it may be unknown */
};

struct zip {
    struct zip_entry *entries; /* by name */
    size_t count;
    char *names;
};

/* Does the file begin as a zip archive? MUSTER_ESYSTEM. */
int zip_is_one(struct archive *archive, uint32_t file, bool *out);

/* Reads the directory of the archive that is `bytes` bytes at `base` of a file. MUSTER_ECORRUPT, MUSTER_EUNSUPPORTED,
 * MUSTER_ELIMIT, MUSTER_ENOMEM, MUSTER_ESYSTEM; the caller adds the file's name. */
int zip_read(struct archive *archive, uint32_t file, uint64_t base, uint64_t bytes, struct zip *out);
/* The entry of that name in a folder, which ends in a slash; NULL: there is none. */
const struct zip_entry *zip_find_in(const struct zip *zip, const char *folder, const char *name);
/* A zeroed one is accepted. */
void zip_done(struct zip *zip);

#endif
