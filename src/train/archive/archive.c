/* Opening an archive of any kind, and what is in it; see archive.h. */
#include "train/archive/archive.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/status.h"
#include "base/str.h"
#include "train/archive/archive_impl.h"
#include "train/archive/zip.h"

#define DCP_METADATA_NAME ".metadata"

enum { MAGIC_BYTES = 16, PASSED_OVER_BYTES_MAX = 1 << 20 };

/* Protocol 2, then the number 0x1950a86a20f9469cfc6c: torch.save before its archives. */
static const uint8_t legacy_magic[] = {0x80, 2, 0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};

static bool has_suffix(const char *text, const char *suffix) {
    size_t n = strlen(text), m = strlen(suffix);
    return n >= m && strcmp(text + n - m, suffix) == 0;
}

/* The first bytes tell. */
static int read_file(struct archive *archive, const char *path) {
    uint8_t magic[MAGIC_BYTES] = {0};
    uint32_t file = 0;
    int code = archive_add_file(archive, path, true, &file);
    uint64_t bytes = code ? 0 : archive->files[file].bytes;
    size_t count = bytes < sizeof magic ? (size_t)bytes : sizeof magic;
    bool is_zip = false;
    code = code ? code : archive_read(archive, file, 0, magic, count);
    code = code ? code : zip_is_one(archive, file, &is_zip);
    if (code) {
        return code;
    }
    if (count >= sizeof legacy_magic && memcmp(magic, legacy_magic, sizeof legacy_magic) == 0) {
        return status_fail(
            MUSTER_EUNSUPPORTED,
            "%s is of torch.save's old format, which has no archive around its pickle; convert it: python "
            "-c \"import torch; torch.save(torch.load('%s', map_location='cpu'), 'new.pt')\"",
            path, path);
    }
    if (is_zip) {
        archive->kind = "torch.save file";
        code = torch_file_read(archive, file, 0, bytes, "");
        return code ? status_prefix(code, "%s", path) : 0;
    }
    if (count > 8 && magic[8] == '{') {
        archive->kind = "safetensors file";
        return safetensors_file_read(archive, path);
    }
    return status_fail(MUSTER_EUNSUPPORTED, "%s is neither a torch.save file nor a safetensors file", path);
}

static bool exists(const char *folder, const char *name) {
    struct stat info;
    char *path = str_format_new("%s/%s", folder, name);
    bool is_there = path && stat(path, &info) == 0;
    free(path);
    return is_there;
}

/* The folder of a path, for the caller to free; NULL: no memory. */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? strndup(path, (size_t)(slash - path) + (slash == path)) : strdup(".");
}

static const char *name_in(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int read_index(struct archive *archive, const char *path) {
    char *folder = folder_of(path);
    archive->kind = strstr(name_in(path), ".bin.") ? "sharded torch.save files" : "sharded safetensors files";
    int code = folder ? safetensors_index_read(archive, path, folder) : status_fail(MUSTER_ENOMEM, "no memory");
    free(folder);
    return code;
}

static int read_own_file(struct archive *archive, const char *path) {
    char *folder = folder_of(path);
    int code = folder ? muster_file_read(archive, folder, name_in(path)) : status_fail(MUSTER_ENOMEM, "no memory");
    free(folder);
    return code;
}

/* ---- folders of Hugging Face's libraries ---- */

/* "model.safetensors.index.json", and "diffusion_pytorch_model.safetensors.index.fp16.json" of a variant. */
static bool is_index(const char *name) {
    return has_suffix(name, ".json") && strstr(name, ".index.");
}

static bool is_safetensors_index(const char *name) {
    return is_index(name) && strstr(name, ".safetensors.");
}

static bool is_safetensors(const char *name) {
    return has_suffix(name, ".safetensors");
}

static bool is_bin(const char *name) {
    return has_suffix(name, ".bin");
}

/* What such a folder is read by: the first kind that there is. Of many of a kind it is the one with the usual name. */
static const struct lone {
    bool (*is_one)(const char *name);
    const char *usual, *what;
} lones[] = {
    {is_safetensors_index, "model.safetensors.index.json", "indexes of safetensors files"},
    {is_index, "pytorch_model.bin.index.json", "indexes"},
    {is_safetensors, "model.safetensors", "safetensors files without an index"},
    {is_bin, "pytorch_model.bin", "files of torch.save without an index"},
};

/* *out: the name, for the caller to free; NULL: there is none. MUSTER_EINVAL: one is to be named. */
static int find_lone(const char *folder, const struct lone *lone, char **out) {
    DIR *stream = opendir(folder);
    char *found = NULL, *second = NULL;
    for (struct dirent *entry = stream ? readdir(stream) : NULL; entry; entry = readdir(stream)) {
        char **place = !found ? &found : !second ? &second : NULL;
        if (place && lone->is_one(entry->d_name)) {
            *place = strdup(entry->d_name);
        }
    }
    if (stream) {
        (void)closedir(stream);
    }
    int code = 0;
    if (second && exists(folder, lone->usual)) {
        free(found);
        found = strdup(lone->usual);
    } else if (second) {
        code = status_fail(MUSTER_EINVAL, "%s has several %s, %s and %s among them; name one", folder, lone->what,
                           found, second);
    }
    free(second);
    *out = code ? NULL : found;
    if (code) {
        free(found);
    }
    return code;
}

static int read_lone(struct archive *archive, const char *folder, const struct lone *lone, bool *out_is_there) {
    char *name = NULL, *path = NULL;
    int code = find_lone(folder, lone, &name);
    *out_is_there = code || name;
    if (name) {
        path = str_format_new("%s/%s", folder, name);
        code = !path            ? status_fail(MUSTER_ENOMEM, "no memory for a name")
               : is_index(name) ? read_index(archive, path)
                                : read_file(archive, path);
    }
    free(name);
    free(path);
    return code;
}

/* ---- folders ---- */

static int read_folder(struct archive *archive, const char *folder) {
    if (exists(folder, DCP_METADATA_NAME)) {
        archive->kind = "distributed checkpoint";
        return dcp_read(archive, folder);
    }
    bool is_there = false;
    int code = 0;
    for (size_t i = 0; i < 2 && !is_there; i++) { /* indexes */
        code = read_lone(archive, folder, &lones[i], &is_there);
    }
    code = is_there ? code : muster_folder_read(archive, folder);
    if (is_there || code != MUSTER_ENOENT || archive->kind) {
        return code;
    }
    for (size_t i = 2; i < sizeof lones / sizeof *lones && !is_there; i++) {
        code = read_lone(archive, folder, &lones[i], &is_there);
    }
    if (is_there) {
        return code;
    }
    if (exists(folder, "__0" DCP_METADATA_NAME)) {
        return status_fail(
            MUSTER_EUNSUPPORTED,
            "%s was saved with use_collectives=False: each rank has described its own part alone; save it "
            "with collectives",
            folder);
    }
    return status_fail(MUSTER_ENOENT,
                       "%s has neither " DCP_METADATA_NAME " (a distributed checkpoint, whole) nor model.safetensors "
                       "or an index, nor a checkpoint or snapshot of Muster's; name a file in it",
                       folder);
}

/* An expanded tensor takes no room in a file, and all of it in a snapshot: a small file must not fill a disk. */
static int check_size(const struct archive *archive, const char *path) {
    uint64_t files = 0, tensors = 0, most;
    for (size_t i = 0; i < archive->file_count; i++) {
        files += archive->files[i].bytes;
    }
    for (size_t i = 0; i < archive->tensor_count; i++) { /* at most 2^60 each, and 2^18 of them */
        tensors = tensors > UINT64_MAX - archive->tensors[i].bytes ? UINT64_MAX : tensors + archive->tensors[i].bytes;
    }
    if (archive->view) {
        return 0; /* each element lies in a file */
    }
    if (__builtin_mul_overflow(files, ARCHIVE_EXPANSION_MAX, &most) || tensors <= most + ARCHIVE_EXPANDED_BYTES_MIN) {
        return 0;
    }
    return status_fail(MUSTER_ELIMIT,
                       "%s has %" PRIu64 " bytes, its tensors would have %" PRIu64 ": they are expanded too far", path,
                       files, tensors);
}

int archive_open(const char *path, struct archive **out) {
    struct archive *archive = calloc(1, sizeof *archive);
    struct stat info;
    if (!archive) {
        return status_fail(MUSTER_ENOMEM, "no memory to read %s", path);
    }
    archive->step = -1;
    buf_init(&archive->passed_over, PASSED_OVER_BYTES_MAX);
    buf_init(&archive->memory, ARCHIVE_PICKLE_BYTES_MAX);
    crc32_init(&archive->crc);
    bool is_folder = stat(path, &info) == 0 && S_ISDIR(info.st_mode);
    int code = is_folder                       ? read_folder(archive, path)
               : is_index(name_in(path))       ? read_index(archive, path)
               : muster_file_is(name_in(path)) ? read_own_file(archive, path)
                                               : read_file(archive, path);
    code = code ? code : check_size(archive, path);
    code = code ? code : archive_name_apart(archive);
    if (code) {
        archive_close(archive);
        return code;
    }
    *out = archive;
    return 0;
}

void archive_close(struct archive *archive) {
    if (!archive) {
        return;
    }
    archive_close_files(archive);
    buf_done(&archive->passed_over);
    buf_done(&archive->memory);
    muster_files_done(archive);
    for (size_t i = 0; i < archive->tensor_count; i++) {
        free(archive->tensors[i].name);
        free(archive->tensors[i].checksum);
    }
    for (size_t i = 0; i < archive->value_count; i++) {
        free(archive->values[i].name);
        free(archive->values[i].text);
    }
    free(archive->tensors);
    free(archive->pieces);
    free(archive->values);
    free(archive->block);
    free(archive->scratch);
    free(archive);
}

const char *archive_kind(const struct archive *archive) {
    return archive->kind;
}

int64_t archive_step(const struct archive *archive) {
    return archive->step;
}

const char *archive_passed_over(const struct archive *archive) {
    return archive->passed_over.len > 0 ? (const char *)buf_bytes(&archive->passed_over) : "";
}

size_t archive_tensor_count(const struct archive *archive) {
    return archive->tensor_count;
}

const struct archive_tensor *archive_tensor(const struct archive *archive, size_t index) {
    return &archive->tensors[index];
}

size_t archive_value_count(const struct archive *archive) {
    return archive->value_count;
}

const struct archive_value *archive_value(const struct archive *archive, size_t index) {
    return &archive->values[index];
}

/* ---- all of it ---- */

/* One tensor to its end, or to the first damage. A snapshot's bytes have been counted before. */
static int verify_tensor(struct archive *archive, size_t number, archive_verify_fn *tell, void *context) {
    uint64_t bytes = archive->tensors[number].bytes, count = 0;
    const void *next = NULL;
    int code = 0;
    for (uint64_t done = 0; done < bytes && code == 0; done += count) {
        code = archive_next(archive, number, ARCHIVE_BLOCK_BYTES, &next, &count);
        code = code ? code : tell(context, NULL, archive->manifest ? 0 : count);
    }
    return code == MUSTER_ECORRUPT ? tell(context, muster_detail(), 0) : code;
}

int archive_verify(struct archive *archive, archive_verify_fn *tell, void *context) {
    bool is_done = false;
    int code = archive->step >= 0 ? muster_files_verify(archive, tell, context, &is_done) : 0;
    for (size_t i = 0; i < archive->tensor_count && code == 0 && !is_done; i++) {
        code = verify_tensor(archive, i, tell, context);
    }
    return code;
}
