/* Finding and opening the MPI library; see mpi_library.h. What is found is judged before anything of it is used: is it
 * an MPI, of which ABI, and has it all that the shim calls? Only then is there a struct mpi. */
#include "comm/mpi/mpi_library.h"

#include <dlfcn.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/mpi/mpi_library_impl.h"
#include "comm/mpi/mpi_shim_impl.h"

#define ADVICE "install Open MPI or MPICH (Debian: libopenmpi3 or libmpich12), or set MUSTER_MPI_LIBRARY=path"

/* A library that may be an MPI. */
struct found {
    void *library; /* NULL: a part of the program */
    void *scope;   /* where to look for symbols: `library` or RTLD_DEFAULT */
    void *in_use;  /* MPI_Get_version() of the MPI that all of the program saw before; NULL: there was none */
    char label[MPI_PATH_MAX + 32];
    char path[MPI_PATH_MAX], version[MPI_VERSION_TEXT_MAX];
    int major, minor;
};

/* Looking. */

/* Keeps in `trouble` why a file that is there cannot be loaded; that there is none is no trouble. */
static void note_trouble(const char *name, const char *reason, char *trouble, size_t size) {
    bool is_absent = str_has_prefix(reason, name) && strstr(reason, "No such file or directory");
    if (!is_absent && !trouble[0]) {
        str_format(trouble, size, "%s", reason);
    }
}

static bool look(const struct mpi_candidate *candidate, struct found *found, char *trouble, size_t trouble_size) {
    int no_load = candidate->place == MPI_PLACE_LOADED ? RTLD_NOLOAD : 0;
    if (candidate->place == MPI_PLACE_IN_USE) {
        found->scope = RTLD_DEFAULT;
        return found->in_use != NULL;
    }
    /* For all to see: the library loads parts of itself that expect this. */
    found->library = found->scope = dlopen(candidate->name, RTLD_NOW | RTLD_GLOBAL | no_load);
    if (!found->library && !no_load) {
        const char *reason = dlerror();
        note_trouble(candidate->name, reason ? reason : candidate->name, trouble, trouble_size);
    }
    return found->library != NULL;
}

static int fail_none(const struct mpi_candidate *candidates, size_t count, const char *trouble) {
    char names[256] = "";
    size_t used = 0;
    if (candidates[0].place == MPI_PLACE_NAMED) {
        return status_fail(trouble[0] ? MUSTER_EUNSUPPORTED : MUSTER_ENOENT,
                           "MUSTER_MPI_LIBRARY=%s: %s; it must be the path of an MPI "
                           "library for this machine, with all that it needs (%s)",
                           candidates[0].name, trouble[0] ? trouble : "there is no such file",
                           "such as /usr/lib/x86_64-linux-gnu/libmpi.so.40");
    }
    for (size_t i = 0; i < count && used < sizeof names; i++) { /* what does not fit is cut */
        if (candidates[i].place == MPI_PLACE_NAME) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", candidates[i].name);
        }
    }
    return trouble[0] ? status_fail(MUSTER_EUNSUPPORTED, "no MPI library can be loaded: %s: " ADVICE, trouble)
                      : status_fail(MUSTER_ENOENT, "no MPI library found (looked for %s): " ADVICE, names);
}

/* Judging. */

static void describe(struct found *found, const struct mpi_candidate *candidate) {
    Dl_info info;
    void *address = dlsym(found->scope, "MPI_Init_thread");
    const char *path = address && dladdr(address, &info) && info.dli_fname ? info.dli_fname : candidate->name;
    str_format(found->path, sizeof found->path, "%s", path ? path : "the program");
    if (candidate->place == MPI_PLACE_NAMED) {
        str_format(found->label, sizeof found->label, "MUSTER_MPI_LIBRARY=%s", candidate->name);
    } else {
        str_format(found->label, sizeof found->label, "%s", found->path);
    }
}

/* The first line or sentence, with single blanks: "Open MPI v4.1.4", "MPICH 4.0.2" (of "MPICH Version:\t4.0.2"). */
static void shorten(const char *text, char *out, size_t size) {
    size_t used = 0;
    while (*text && !strchr("\n,", *text) && used + 1 < size) {
        bool is_blank = *text == ' ' || *text == '\t';
        if (str_has_prefix(text, "Version:")) {
            text += strlen("Version:");
            continue;
        }
        if (!is_blank || (used > 0 && out[used - 1] != ' ')) {
            out[used++] = *text >= ' ' && *text <= '~' ? *text : is_blank ? ' ' : '?';
        }
        text++;
    }
    while (used > 0 && out[used - 1] == ' ') {
        used--;
    }
    out[used] = '\0';
}

/* Asks it for its versions, which MPI lets one do at any time. */
static int ask_version(struct found *found) {
    int (*get_version)(int *, int *) = NULL;
    int (*get_library_version)(char *, int *) = NULL;
    void *init_thread = NULL;
    char text[8192 + 1] = ""; /* the longest of the three ABIs */
    int length = 0;
    if (!library_find(found->scope, "MPI_Init_thread", &init_thread, sizeof init_thread) ||
        !library_find(found->scope, "MPI_Get_version", &get_version, sizeof get_version) ||
        get_version(&found->major, &found->minor) != 0) {
        return status_fail(MUSTER_EUNSUPPORTED, "%s is no MPI library: it has no %s: " ADVICE, found->label,
                           init_thread ? "MPI_Get_version" : "MPI_Init_thread");
    }
    if (library_find(found->scope, "MPI_Get_library_version", &get_library_version, sizeof get_library_version) &&
        get_library_version(text, &length) == 0) {
        shorten(text, found->version, sizeof found->version);
    }
    return 0;
}

static int fail_without(const struct found *found, const char *symbol) {
    if (found->major < 3) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "%s is too old: it follows MPI %d.%d and has no %s; MPI 3.0 is needed (Open MPI 1.8, MPICH "
                           "3.1, Intel MPI 5 or later): install a newer one, or set MUSTER_MPI_LIBRARY=path",
                           found->label, found->major, found->minor, symbol);
    }
    return status_fail(MUSTER_EUNSUPPORTED,
                       "%s is not complete: it says that it follows MPI %d.%d, and has no %s: install it anew, or set "
                       "MUSTER_MPI_LIBRARY=path of another",
                       found->label, found->major, found->minor, symbol);
}

/* Does it say that it has the standard's ABI? MPICH 5 and Open MPI 6 have this call in their own ABI, too, and then
 * answer -1. */
static bool claims_standard(const struct found *found) {
    int (*abi_version)(int *, int *) = NULL;
    int major = -1, minor = -1;
    return library_find(found->scope, "MPI_Abi_get_version", &abi_version, sizeof abi_version) &&
           abi_version(&major, &minor) == 0 && major >= 1;
}

static bool is_of_mpich(const char *version) {
    static const char *const family[] = {"MPICH", "Intel(R) MPI", "MVAPICH", "ParaStation MPI"};
    for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
        if (strstr(version, family[i])) {
            return true;
        }
    }
    return false;
}

/* The standard ABI is asked for first: Open MPI's library of that kind is linked with the one that has its variables.
 */
static int choose_shim(const struct found *found, const struct mpi_shim **out) {
    const char *file = strrchr(found->path, '/');
    bool is_named_standard = str_has_prefix(file ? file + 1 : found->path, "libmpi_abi.");
    bool is_standard = claims_standard(found);
    if (is_standard && found->major >= 5) {
        *out = &mpi_shim_standard;
        return 0;
    }
    if (is_standard || is_named_standard) {
        return status_fail(
            MUSTER_EUNSUPPORTED,
            "%s (%s) has a draft of MPI's standard ABI, of MPI %d.%d; the standard's is that of MPI 5: set "
            "MUSTER_MPI_LIBRARY to the libmpi.so.12 or libmpi.so.40 beside it",
            found->label, found->version, found->major, found->minor);
    }
    *out = dlsym(found->scope, "ompi_mpi_comm_world") ? &mpi_shim_open_mpi : &mpi_shim_mpich;
    if (*out == &mpi_shim_mpich && found->major >= 3 && !is_of_mpich(found->version)) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "%s is an MPI that Muster does not know (\"%s\"); it knows Open MPI, MPICH and its family "
                           "(Intel MPI, Cray MPICH, MVAPICH), and the standard ABI of MPI 5: set MUSTER_MPI_LIBRARY to "
                           "one of these",
                           found->label, found->version);
    }
    return 0;
}

static bool is_other(void *get_version, const struct found *found) {
    return get_version && get_version != dlsym(found->scope, "MPI_Get_version");
}

static const char *no_variable(void *context, const char *name) {
    (void)context;
    (void)name;
    return NULL;
}

/* Is there another MPI in the process than this one? Two of them would call each other's functions. */
static int check_alone(const struct found *found) {
    struct mpi_candidate candidates[MPI_CANDIDATES_MAX];
    size_t count = mpi_find_order(no_variable, NULL, candidates);
    const char *other = is_other(found->in_use, found) ? "another MPI" : NULL;
    for (size_t i = 0; !other && i < count; i++) {
        void *loaded = candidates[i].place == MPI_PLACE_LOADED
                           ? dlopen(candidates[i].name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)
                           : NULL;
        if (loaded) {
            other = is_other(dlsym(loaded, "MPI_Get_version"), found) ? candidates[i].name : NULL;
            dlclose(loaded);
        }
    }
    return other ? status_fail(MUSTER_EUNSUPPORTED,
                               "%s: the program has loaded %s already, and a process can have one MPI only: unset "
                               "MUSTER_MPI_LIBRARY, or name that one",
                               found->label, other)
                 : 0;
}

/* Resolving. */

static bool resolve(const struct found *found, const struct mpi_symbol *symbols, char *table,
                    const char **out_missing) {
    for (; symbols->name; symbols++) {
        if (!library_find(found->scope, symbols->name, table + symbols->offset, sizeof(void (*)(void)))) {
            *out_missing = symbols->name;
            return false;
        }
    }
    return true;
}

static bool resolve_constants(const struct found *found, const struct mpi_constant *constants, struct mpi *mpi,
                              const char **out_missing) {
    for (; constants->offset; constants++) {
        uintptr_t value = constants->value;
        if (constants->symbol) {
            value = (uintptr_t)dlsym(found->scope, constants->symbol);
            if (value == 0) {
                *out_missing = constants->symbol;
                return false;
            }
        }
        memcpy((char *)mpi + constants->offset, &value, sizeof value);
    }
    return true;
}

static int fill(const struct found *found, const struct mpi_shim *shim, struct mpi *mpi, char *table) {
    const char *missing = NULL;
    if (!resolve(found, shim->symbols, table, &missing) || !resolve_constants(found, shim->constants, mpi, &missing)) {
        return fail_without(found, missing);
    }
    mpi->has_large_counts = resolve(found, shim->large_symbols, table, &missing);
    mpi->short_count_max = INT_MAX;
    mpi->calls = shim->calls;
    mpi->abi = shim->abi;
    mpi->abi_name = shim->abi_name;
    mpi->major = found->major;
    mpi->minor = found->minor;
    mpi->in_place = shim->in_place;
    mpi->any_source = shim->any_source;
    mpi->any_tag = shim->any_tag;
    mpi->proc_null = shim->proc_null;
    mpi->undefined = shim->undefined;
    mpi->symbols = table;
    mpi->library = found->library;
    str_format(mpi->path, sizeof mpi->path, "%s", found->path);
    str_format(mpi->version, sizeof mpi->version, "%s", found->version);
    return 0;
}

static int make(const struct found *found, const struct mpi_shim *shim, struct mpi **out) {
    struct mpi *mpi = calloc(1, sizeof *mpi);
    char *table = calloc(1, shim->table_bytes);
    int code = mpi && table ? fill(found, shim, mpi, table) : status_fail(MUSTER_ENOMEM, "open %s", found->label);
    if (code != 0) {
        free(table);
        free(mpi);
        return code;
    }
    *out = mpi;
    return 0;
}

static int judge(struct found *found, const struct mpi_candidate *candidate, struct mpi **out) {
    const struct mpi_shim *shim = NULL;
    describe(found, candidate);
    int code = ask_version(found);
    if (code == 0) {
        code = check_alone(found);
    }
    if (code == 0) {
        code = choose_shim(found, &shim);
    }
    if (code == 0) {
        found->scope = found->in_use ? RTLD_DEFAULT : found->scope; /* the program may have copies of its variables */
        code = make(found, shim, out);
    }
    if (code != 0 && found->library) {
        dlclose(found->library);
    }
    return code;
}

int mpi_library_open(const struct mpi_candidate candidates[], size_t count, struct mpi **out) {
    /* Asked once, before anything is loaded: what RTLD_DEFAULT has found can never be closed. */
    struct found found = {.in_use = dlsym(RTLD_DEFAULT, "MPI_Get_version")};
    char trouble[256] = "";
    for (size_t i = 0; i < count; i++) {
        if (look(&candidates[i], &found, trouble, sizeof trouble)) {
            return judge(&found, &candidates[i], out);
        }
    }
    return fail_none(candidates, count, trouble);
}

void mpi_library_close(struct mpi *mpi) {
    if (!mpi) {
        return;
    }
    if (mpi->library) {
        dlclose(mpi->library);
    }
    free((void *)(uintptr_t)mpi->symbols);
    free(mpi);
}

/* The process's. */

static struct {
    struct mpi *mpi;
    int code;
    char sentence[MUSTER_DETAIL_MAX];
    struct muster_failure failure;
} opened;

static const char *environment(void *context, const char *name) {
    (void)context;
    return getenv(name);
}

static void open_once(void) {
    struct mpi_candidate candidates[MPI_CANDIDATES_MAX];
    size_t count = mpi_find_order(environment, NULL, candidates);
    opened.code = mpi_library_open(candidates, count, &opened.mpi);
    if (opened.code != 0) {
        str_format(opened.sentence, sizeof opened.sentence, "%s", muster_detail());
        opened.failure = status_failure();
    }
}

int mpi_open(struct mpi const **out) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_once);
    if (opened.code != 0) {
        return status_restore(opened.code, opened.sentence, &opened.failure);
    }
    *out = opened.mpi;
    return 0;
}
