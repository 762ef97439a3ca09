/* Reading a tensor from its pieces: blocks of whole rows, in order; each block is put together from the pieces that
 * meet it. See archive_impl.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/archive/archive_impl.h"

/* A box of the tensor whose elements lie side by side in it. */
struct block {
    uint64_t start[MUSTER_TENSOR_DIMS_MAX];
    uint64_t size[MUSTER_TENSOR_DIMS_MAX];
    uint64_t elements;
};

/* One dimension of a copy: how many, and how far apart in the file and in the block. In elements. */
struct dim {
    uint64_t count, from, to;
};

/* The box that begins at the tensor's next element, of at most `most_bytes`: as many indices of the outermost dimension
 * that fits as are possible. */
static struct block next_block(const struct archive_tensor *tensor, uint64_t most_bytes) {
    struct block block = {.elements = 1};
    uint64_t most = (most_bytes < ARCHIVE_BLOCK_BYTES ? most_bytes : ARCHIVE_BLOCK_BYTES) / tensor->element_bytes;
    uint64_t rest = tensor->element;
    bool is_full = false;
    for (uint32_t i = tensor->dim_count; i-- > 0;) {
        uint64_t extent = tensor->shape[i];
        block.start[i] = rest % extent;
        rest /= extent;
        /* Inner dimensions are whole; this one is whole, or in part, and those around it are single. */
        uint64_t wanted = is_full ? 1 : extent - block.start[i];
        uint64_t fits = most / block.elements;
        block.size[i] = wanted < fits ? wanted : fits;
        is_full = is_full || block.size[i] < extent;
        block.elements *= block.size[i];
    }
    return block;
}

/* What a piece and a block have in common, as a copy; false: nothing. */
static bool intersect(const struct archive_tensor *tensor, const struct archive_piece *piece, const struct block *block,
                      struct dim *dims, uint64_t *out_from, uint64_t *out_to) {
    uint64_t to_stride = 1;
    *out_from = *out_to = 0;
    for (uint32_t i = tensor->dim_count; i-- > 0;) {
        uint64_t first = piece->start[i] > block->start[i] ? piece->start[i] : block->start[i];
        uint64_t piece_end = piece->start[i] + piece->size[i], block_end = block->start[i] + block->size[i];
        uint64_t end = piece_end < block_end ? piece_end : block_end;
        if (first >= end) {
            return false;
        }
        dims[i] = (struct dim){.count = end - first, .from = piece->stride[i], .to = to_stride};
        *out_from += (first - piece->start[i]) * piece->stride[i];
        *out_to += (first - block->start[i]) * to_stride;
        to_stride *= block->size[i];
    }
    return true;
}

/* Dimensions of one are dropped, those that continue each other in the file and in the block become one, and the one
 * whose elements are nearest to each other in the file comes last. At least one is left. */
static uint32_t simplify(struct dim *dims, uint32_t count) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct dim dim = dims[i];
        if (dim.count == 1) {
            continue;
        }
        struct dim *outer = kept > 0 ? &dims[kept - 1] : NULL;
        if (outer && outer->from == dim.count * dim.from && outer->to == dim.count * dim.to) {
            *outer = (struct dim){.count = outer->count * dim.count, .from = dim.from, .to = dim.to};
        } else {
            dims[kept++] = dim;
        }
    }
    if (kept == 0) {
        dims[kept++] = (struct dim){.count = 1, .from = 1, .to = 1};
    }
    for (uint32_t i = 0; i + 1 < kept; i++) {
        if (dims[i].from < dims[kept - 1].from) {
            struct dim nearest = dims[i];
            dims[i] = dims[kept - 1];
            dims[kept - 1] = nearest;
        }
    }
    return kept;
}

/* A copy under way. */
struct copy {
    struct archive *archive;
    struct archive_piece *piece;
    uint32_t element_bytes;
    uint64_t piece_bytes;
    struct dim run; /* the innermost dimension */
};

/* Reads what comes next in the piece's part of the file, or begins again with it. Whoever reads in another order gets
 * no check. */
static int read_checked(const struct copy *copy, uint64_t at, void *out, uint64_t count) {
    struct archive_piece *piece = copy->piece;
    int code = archive_read(copy->archive, piece->file, at, out, count);
    if (code || piece->crc == 0 || at - piece->data_at != (at == piece->data_at ? 0 : piece->crc_bytes)) {
        return code;
    }
    if (at == piece->data_at) {
        piece->crc_bytes = piece->crc_so_far = 0;
    }
    piece->crc_so_far = crc32_add(&copy->archive->crc, piece->crc_so_far, out, (size_t)count);
    piece->crc_bytes += count;
    if (piece->crc_bytes == copy->piece_bytes && piece->crc_so_far != piece->crc) {
        return status_fail(MUSTER_ECORRUPT, "%s is damaged: a checksum of its zip archive does not fit",
                           copy->archive->files[piece->file].path);
    }
    return 0;
}

static int copy_run(const struct copy *copy, uint64_t from, uint64_t to) {
    struct archive *archive = copy->archive;
    uint64_t element_bytes = copy->element_bytes;
    uint8_t *out = archive->block + to * element_bytes;
    uint64_t at = copy->piece->data_at + from * element_bytes;
    if (copy->run.from == 1 && copy->run.to == 1) {
        return read_checked(copy, at, out, copy->run.count * element_bytes);
    }
    if (copy->run.from == 1) {
        int code = archive_read(archive, copy->piece->file, at, archive->scratch, copy->run.count * element_bytes);
        for (uint64_t i = 0; i < copy->run.count && code == 0; i++) {
            memcpy(out + i * copy->run.to * element_bytes, archive->scratch + i * element_bytes, element_bytes);
        }
        return code;
    }
    int code = 0;
    for (uint64_t i = 0; i < copy->run.count && code == 0; i++) {
        code = archive_read(archive, copy->piece->file, at + i * copy->run.from * element_bytes,
                            out + i * copy->run.to * element_bytes, element_bytes);
    }
    return code;
}

static uint64_t bytes_of(const struct archive_tensor *tensor, const struct archive_piece *piece) {
    uint64_t bytes = tensor->element_bytes;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        bytes *= piece->size[i];
    }
    return bytes;
}

static int copy_piece(struct archive *archive, const struct archive_tensor *tensor, struct archive_piece *piece,
                      const struct block *block) {
    struct dim dims[MUSTER_TENSOR_DIMS_MAX + 1];
    uint64_t at[MUSTER_TENSOR_DIMS_MAX + 1] = {0}, from = 0, to = 0;
    if (!intersect(tensor, piece, block, dims, &from, &to)) {
        return 0;
    }
    uint32_t outer = simplify(dims, tensor->dim_count) - 1;
    struct copy copy = {archive, piece, tensor->element_bytes, bytes_of(tensor, piece), dims[outer]};
    for (;;) {
        int code = copy_run(&copy, from, to);
        uint32_t i = outer;
        while (code == 0 && i > 0 && ++at[i - 1] == dims[i - 1].count) { /* an odometer */
            i--;
            at[i] = 0;
            from -= (dims[i].count - 1) * dims[i].from;
            to -= (dims[i].count - 1) * dims[i].to;
        }
        if (code || i == 0) {
            return code;
        }
        from += dims[i - 1].from;
        to += dims[i - 1].to;
    }
}

static int make_blocks(struct archive *archive) {
    archive->block = archive->block ? archive->block : malloc(ARCHIVE_BLOCK_BYTES);
    archive->scratch = archive->scratch ? archive->scratch : malloc(ARCHIVE_BLOCK_BYTES);
    return archive->block && archive->scratch ? 0 : status_fail(MUSTER_ENOMEM, "no memory to read a tensor");
}

/* The elements of a block, side by side in archive->block. */
static int read_block(struct archive *archive, size_t number, const struct block *block) {
    const struct archive_tensor *tensor = &archive->tensors[number];
    int code = make_blocks(archive);
    if (code == 0 && archive->view) { /* which names the tensor */
        return muster_view_read(archive, number, tensor->element, block->elements, archive->block);
    }
    for (uint32_t i = 0; i < tensor->piece_count && code == 0; i++) {
        code = copy_piece(archive, tensor, &archive->pieces[tensor->first_piece + i], block);
    }
    if (code == 0 && archive->manifest) {
        code = muster_snapshot_check(archive, number, archive->block, block->elements * tensor->element_bytes);
    }
    return code ? status_prefix(code, "tensor %s", tensor->name) : 0;
}

int archive_next(struct archive *archive, size_t number, uint64_t most, const void **out, uint64_t *out_bytes) {
    assert(number < archive->tensor_count);
    struct archive_tensor *tensor = &archive->tensors[number];
    assert(most >= tensor->element_bytes && tensor->bytes > 0);
    struct block block = next_block(tensor, most);
    int code = read_block(archive, number, &block);
    if (code) {
        tensor->element = 0;
        return code;
    }
    tensor->element = (tensor->element + block.elements) % (tensor->bytes / tensor->element_bytes);
    *out = archive->block;
    *out_bytes = block.elements * tensor->element_bytes;
    return 0;
}
