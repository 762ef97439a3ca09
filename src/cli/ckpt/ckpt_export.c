/* `muster ckpt export`: safetensors files for other programs, one or several with Hugging Face's index. Tensors are
 * copied a few MiB at a time. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/ckpt/ckpt.h"
#include "cli/command/cli.h"
#include "train/checkpoint/checkpoint_rename.h"
#include "train/state/safetensors.h"

#define HEADER_ROOM (SAFETENSORS_HEADER_BYTES_MAX + SAFETENSORS_PREFIX_BYTES)
#define INDEX_NAME "model.safetensors.index.json"

enum { TO, SHARD_SIZE };

static const struct ckpt_grammar grammar = {
    .program = "muster ckpt export",
    .help = "usage: muster ckpt export SOURCE --to TARGET [options]\n"
            "\n"
            "Writes the tensors of SOURCE as safetensors files, which PyTorch, Hugging Face's\n"
            "libraries and others read. Checksums are compared. Numbers and texts are left out:\n"
            "safetensors files have none.\n"
            "\n" CKPT_SOURCE_HELP "\n"
            "  --to TARGET         model.safetensors: that file; else a folder, which is made if it\n"
            "                      is missing. No file is written over\n"
            "  --shard-size SIZE   several files in the folder, of at most so many bytes of tensors\n"
            "                      each (5GB, 500MB, 1GiB), and " INDEX_NAME "\n"
            "  --rename OLD=NEW    other names; a * on each side stands for the same characters:\n"
            "                      'model.*=*'. The first that fits counts; can be given several times\n"
            "  --only NAME         only what is called so, and what is below it\n"
            "  --skip NAME         nothing that is called so or is below it\n"
            "  -h, --help          show this text\n",
    .usage = "a source is needed: muster ckpt export checkpoints --to model.safetensors",
    .path_count = 1,
    .values = {"--to", "--shard-size"},
    .has_choice = true,
    .has_rename = true,
};

/* A tensor that is written. */
struct item {
    size_t number; /* in the archive */
    char name[MUSTER_NAME_MAX];
    uint32_t shard;
};

struct export {
    const struct ckpt_words *words;
    const char *folder; /* NULL: one file, `to` */
    uint64_t shard_bytes;
    struct archive *archive;
    struct item *items;
    size_t item_count;
    uint32_t shard_count;
    uint64_t bytes;
    struct ckpt_progress progress;
};

/* ---- what is asked for ---- */

static bool has_suffix(const char *text, const char *suffix) {
    size_t length = strlen(text), wanted = strlen(suffix);
    return length > wanted && strcmp(text + length - wanted, suffix) == 0;
}

/* "500MB", "1.5GiB", "1000". */
static int read_size(const char *text, uint64_t *out) {
    static const struct {
        const char *unit;
        double bytes;
    } units[] = {{"", 1},       {"B", 1},         {"KB", 1e3},         {"MB", 1e6},  {"GB", 1e9},
                 {"KiB", 1024}, {"MiB", 1048576}, {"GiB", 1073741824}, {"TB", 1e12}, {"TiB", 1099511627776.0}};
    char *end = NULL;
    double number = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (end != text && strcmp(end, units[i].unit) == 0 && number * units[i].bytes >= 1 &&
            number * units[i].bytes < 1e18) {
            *out = (uint64_t)(number * units[i].bytes);
            return 0;
        }
    }
    return status_fail(MUSTER_EINVAL, "--shard-size %.100s: a size such as 5GB or 500MiB is expected", text);
}

static int read_target(struct export *export) {
    const char *to = export->words->values[TO], *size = export->words->values[SHARD_SIZE];
    const struct checkpoint_renames renames = {export->words->renames, export->words->rename_count};
    export->shard_bytes = UINT64_MAX;
    if (!to) {
        return status_fail(MUSTER_EINVAL, "a target is needed: --to model.safetensors");
    }
    export->folder = has_suffix(to, ".safetensors") ? NULL : to;
    if (size && !export->folder) {
        return status_fail(MUSTER_EINVAL, "--shard-size needs a folder in --to, and %.200s is a file", to);
    }
    int code = size ? read_size(size, &export->shard_bytes) : 0;
    return code ? code : checkpoint_renames_check(&renames);
}

static int by_name(const void *left, const void *right) {
    return strcmp(((const struct item *)left)->name, ((const struct item *)right)->name);
}

static int take_tensor(struct export *export, size_t number) {
    const struct checkpoint_renames renames = {export->words->renames, export->words->rename_count};
    const struct archive_tensor *tensor = archive_tensor(export->archive, number);
    struct item *item = &export->items[export->item_count];
    if (!safetensors_type_named(tensor->type_name)) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "tensor %s is of type %s, which safetensors files do not have; leave it out with --skip",
                           tensor->name, tensor->type_name);
    }
    if (strlen(tensor->name) >= MUSTER_NAME_MAX) {
        return status_fail(MUSTER_ELIMIT, "the name %.100s... is too long", tensor->name);
    }
    item->number = number;
    export->item_count++;
    export->bytes += tensor->bytes;
    return checkpoint_rename(&renames, tensor->name, item->name);
}

/* By name, until a shard is full. */
static void cut(struct export *export) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < export->item_count; i++) {
        uint64_t own = archive_tensor(export->archive, export->items[i].number)->bytes;
        if (i > 0 && (own > export->shard_bytes || bytes > export->shard_bytes - own)) {
            export->shard_count++;
            bytes = 0;
        }
        export->items[i].shard = export->shard_count;
        bytes += own;
    }
    export->shard_count++;
}

static int choose(struct export *export) {
    size_t count = archive_tensor_count(export->archive);
    int code = 0;
    export->items = calloc(count + 1, sizeof *export->items);
    if (!export->items) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", count);
    }
    for (size_t i = 0; i < count && code == 0; i++) {
        if (ckpt_choice_takes(&export->words->choice, archive_tensor(export->archive, i)->name)) {
            code = take_tensor(export, i);
        }
    }
    if (code == 0 && export->item_count == 0) {
        code = status_fail(MUSTER_EINVAL, "there is no tensor to export");
    }
    if (code == 0) {
        qsort(export->items, export->item_count, sizeof *export->items, by_name);
        cut(export);
    }
    return code;
}

/* ---- a file ---- */

static int output_fail(int error_number, const char *path) {
    return error_number == EEXIST
               ? status_fail(MUSTER_EINVAL, "%s is there already; remove it, or choose another target", path)
               : status_fail_errno(error_number, "create %s", path);
}

static int output_open(struct file_draft *out, const char *path) {
    struct stat info;
    int error_number = lstat(path, &info) == 0 ? EEXIST : file_draft_open(out, path);
    return error_number ? output_fail(error_number, path) : 0;
}

static int output_add(struct file_draft *out, const void *bytes, uint64_t count) {
    int error_number = file_write_all(out->fd, bytes, (size_t)count, -1);
    return error_number ? status_fail_errno(error_number, "write %s", out->path) : 0;
}

/* code: of what was done so far. What is not whole is removed. */
static int output_close(struct file_draft *out, int code) {
    int error_number = file_draft_close(out, code ? ECANCELED : 0, FILE_IS_NEW, true);
    return code || error_number == 0 ? code : output_fail(error_number, out->path);
}

/* ---- a shard ---- */

static int write_tensor(struct export *export, struct file_draft *out, size_t number) {
    uint64_t bytes = archive_tensor(export->archive, number)->bytes;
    int code = 0;
    for (uint64_t done = 0, count = 0; done < bytes && code == 0; done += count) {
        const void *block = NULL;
        code = archive_next(export->archive, number, UINT64_MAX, &block, &count);
        code = code ? code : output_add(out, block, count);
        code = code ? code : ckpt_progress_add(&export->progress, count);
    }
    return code;
}

static int write_table(struct export *export, struct file_draft *out, const struct item *items,
                       const struct safetensors *table) {
    struct buf header;
    buf_init(&header, HEADER_ROOM);
    int code = safetensors_encode_with(table, "format", "pt", &header); /* which transformers asks for */
    code = code ? code : output_add(out, buf_bytes(&header), header.len);
    buf_done(&header);
    for (size_t i = 0; i < table->count && code == 0; i++) {
        code = write_tensor(export, out, items[table->entries[i].index].number);
    }
    return code;
}

static struct safetensors_entry entry_of(const struct archive_tensor *tensor, const struct item *item, size_t index) {
    const struct safetensors_type *type = safetensors_type_named(tensor->type_name);
    struct safetensors_entry entry = {.name = item->name,
                                      .type = type->type,
                                      .other = type->type == MUSTER_TYPE_COUNT ? type : NULL,
                                      .dim_count = tensor->dim_count,
                                      .index = index};
    memcpy(entry.shape, tensor->shape, sizeof entry.shape);
    if (type->bits < 8 && entry.dim_count > 0) { /* several in a byte */
        entry.shape[entry.dim_count - 1] *= 8 / type->bits;
    }
    return entry;
}

static int write_shard(struct export *export, const char *path, const struct item *items, size_t count) {
    struct safetensors table = {.count = count, .entries = calloc(count + 1, sizeof *table.entries)};
    struct file_draft out;
    if (!table.entries) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        table.entries[i] = entry_of(archive_tensor(export->archive, items[i].number), &items[i], i);
    }
    int code = safetensors_place(&table);
    code = code ? code : output_open(&out, path);
    code = code ? code : output_close(&out, write_table(export, &out, items, &table));
    safetensors_done(&table);
    return code;
}

/* ---- all of them ---- */

static char *shard_name(const struct export *export, uint32_t shard) {
    return export->shard_count == 1
               ? strdup("model.safetensors")
               : str_format_new("model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", shard + 1, export->shard_count);
}

/* What it counts up to the first item of the next shard. */
static size_t end_of(const struct export *export, size_t first) {
    size_t end = first;
    while (end < export->item_count && export->items[end].shard == export->items[first].shard) {
        end++;
    }
    return end;
}

static int write_in_folder(struct export *export, const char *name, const struct item *items, size_t count) {
    char *path = str_format_new("%s/%s", export->folder, name);
    int code = path ? write_shard(export, path, items, count) : status_fail(MUSTER_ENOMEM, "no memory for a name");
    free(path);
    return code;
}

static int write_index_text(const struct export *export, const json_t *tree) {
    struct buf text;
    struct file_draft out;
    char *path = str_format_new("%s/" INDEX_NAME, export->folder);
    buf_init(&text, CKPT_OUTPUT_BYTES_MAX);
    int code = path && tree ? cli_append_json(&text, tree, JSON_INDENT(2)) : status_fail(MUSTER_ENOMEM, "no memory");
    if (code == 0) {
        code = output_open(&out, path);
        code = code ? code : output_close(&out, output_add(&out, buf_bytes(&text), text.len));
    }
    buf_done(&text);
    free(path);
    return code;
}

static int write_index(const struct export *export) {
    json_t *map = json_object();
    int failed = map ? 0 : -1;
    for (size_t i = 0; i < export->item_count && failed == 0; i++) {
        char *name = shard_name(export, export->items[i].shard);
        failed = name ? json_object_set_new(map, export->items[i].name, json_string(name)) : -1;
        free(name);
    }
    json_t *tree =
        failed ? NULL
               : json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t) export->bytes, "weight_map", map);
    int code = write_index_text(export, tree);
    json_decref(tree);
    json_decref(map);
    return code;
}

static int make_folder(const char *path) {
    struct stat info;
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode))) {
        return 0;
    }
    return status_fail_errno(errno == EEXIST ? ENOTDIR : errno, "make the folder %s", path);
}

/* Of an export that has failed: they were new, so they are its own. */
static void remove_shards(const struct export *export, uint32_t count) {
    for (uint32_t shard = 0; shard < count; shard++) {
        char *name = shard_name(export, shard);
        char *path = name ? str_format_new("%s/%s", export->folder, name) : NULL;
        if (path) {
            (void)unlink(path);
        }
        free(path);
        free(name);
    }
}

/* The index comes last: it is whole when that is there. */
static int write_folder(struct export *export) {
    int code = make_folder(export->folder);
    uint32_t written = 0;
    for (size_t first = 0; first < export->item_count && code == 0; first = end_of(export, first)) {
        char *name = shard_name(export, export->items[first].shard);
        code = name ? write_in_folder(export, name, &export->items[first], end_of(export, first) - first)
                    : status_fail(MUSTER_ENOMEM, "no memory for a name");
        written += code == 0;
        free(name);
    }
    code = code || export->shard_count == 1 ? code : write_index(export);
    if (code) {
        remove_shards(export, written);
    }
    return code;
}

static int report(const struct export *export, struct buf *out) {
    char size[CKPT_SIZE_MAX];
    ckpt_size_text(export->bytes, size);
    int code = buf_printf(out, "%s: %zu tensor%s, %s", export->words->values[TO], export->item_count,
                          str_plural(export->item_count), size);
    code = code || export->shard_count == 1 ? code : buf_printf(out, " in %" PRIu32 " files", export->shard_count);
    code = code || archive_step(export->archive) < 0
               ? code
               : buf_printf(out, ", from step %" PRId64, archive_step(export->archive));
    return code ? code : buf_printf(out, "\n");
}

static int run(struct export *export, struct buf *out) {
    int code = ckpt_open(&grammar, export->words->paths[0], &export->archive);
    code = code ? code : choose(export);
    if (code) {
        return code;
    }
    ckpt_progress_begin(&export->progress, export->bytes);
    code = export->folder ? write_folder(export)
                          : write_shard(export, export->words->values[TO], export->items, export->item_count);
    ckpt_progress_end(&export->progress, code == 0);
    return code ? code : report(export, out);
}

int ckpt_export(int argc, char **argv) {
    struct ckpt_words words;
    struct export export = {.words = &words};
    struct buf out;
    int end = 0;
    if (!ckpt_words_read(&grammar, argc, argv, &words, &end)) {
        return end;
    }
    if (read_target(&export) != 0) {
        cli_error(grammar.program, true, muster_detail());
        return CLI_EXIT_USAGE;
    }
    buf_init(&out, CKPT_OUTPUT_BYTES_MAX);
    int code = run(&export, &out);
    archive_close(export.archive);
    free(export.items);
    return ckpt_finish(&grammar, code, &out);
}
