/* The version, of the headers that a program was compiled with and of the library that it runs with.
 *
 * How structs grow: those called options begin with a `size`, which their initializer sets. If a call takes an array of
 * structs, or fills one in, an inline function of the header tells the library how large they are. The exported
 * function has the same name with "_sized" behind it; bindings for other languages call that one. So a program runs
 * with every library of the same SONAME, older ones included, as long as it uses nothing that they lack. A member that
 * an older program does not know keeps its default. A member that an older library does not know must be zero, else the
 * call gives MUSTER_EUNSUPPORTED. struct muster_store_value, struct muster_message and struct muster_value do not grow.
 */
#ifndef MUSTER_VERSION_H
#define MUSTER_VERSION_H

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_VERSION_MAJOR 0
#define MUSTER_VERSION_MINOR 1
#define MUSTER_VERSION_PATCH 0
#define MUSTER_VERSION_TEXT "0.1.0"

/* One number, to compare: 1.2.3 is 10203. */
#define MUSTER_VERSION (MUSTER_VERSION_MAJOR * 10000 + MUSTER_VERSION_MINOR * 100 + MUSTER_VERSION_PATCH)

/* Those of the library that the program runs with. Any thread. */
int muster_version(void);
const char *muster_version_text(void);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
