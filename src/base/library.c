/* Shared libraries at run time; see library.h. */
#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

void *library_open(const char *name, const char **out_reason) {
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *reason = library ? NULL : dlerror();
    *out_reason = reason ? reason : name;
    return library;
}

void *library_loaded(const char *name) {
    return dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

bool library_find(void *library, const char *name, void *out, size_t size) {
    void *address = dlsym(library, name);
    if (address) {
        memcpy(out, &address, size); /* C has no conversion between pointers to data and to functions */
    }
    return address != NULL;
}
