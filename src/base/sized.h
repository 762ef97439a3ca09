/* Structs of the public interface that grow from version to version, while programs that were compiled with another
 * version go on working.
 *
 * Every such struct tells its size: options in their first member, which the initializer sets; arrays and results by an
 * argument that the header's inline function adds. A smaller struct, of an older program, lacks members: these keep
 * their defaults. A larger one, of a newer program, is accepted if what this library does not know is zero.
 *
 * The rule for whoever adds a member: at the end, behind the old sizeof (not in its padding), and zero means what was
 * done before. tests/abi holds the library to it. Pure. */
#ifndef BASE_SIZED_H
#define BASE_SIZED_H

#include <stddef.h>

/* A greater size is taken for memory that nobody has initialised. */
#define SIZED_BYTES_MAX ((size_t)4096)

/* Copies `given`, a struct of `given_bytes`, over `out`, this library's struct of `own_bytes`, in which members that
 * are not given stay as they are. least_bytes: up to the last member that was there from the first version on. name: of
 * the struct. MUSTER_EINVAL (its size), MUSTER_EUNSUPPORTED (a newer member is not zero); *out is then undefined. */
int sized_read(void *out, size_t own_bytes, const void *given, size_t given_bytes, size_t least_bytes,
               const char *name);

/* The same for options, which begin with a size_t. given: NULL leaves the defaults in `out`. initializer: what they
 * should have been made with. On success out's size is its own. */
int sized_read_options(void *out, size_t own_bytes, const void *given, const char *name, const char *initializer);

/* The same for an array of `count` structs, each of which begins `given_bytes` after the one before. out->items: the
 * array as this library's structs, `given` itself where it is one, else a copy, which is `owned`: to be freed with
 * free(). MUSTER_EINVAL (NULL for a count above 0, too), MUSTER_EUNSUPPORTED, MUSTER_ENOMEM. */
struct sized_array {
    const void *items;
    void *owned;
};
int sized_read_array(struct sized_array *out, size_t own_bytes, const void *given, size_t given_bytes, size_t count,
                     size_t least_bytes, const char *name);

/* Gives a result: copies `from`, this library's struct, to the caller's of `out_bytes`, and fills its rest with zeros.
 */
void sized_write(void *out, size_t out_bytes, const void *from, size_t own_bytes);

#endif
