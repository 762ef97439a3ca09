/* Classes and objects of the machine of pickles; see unpickle_impl.h. */
#include "base/formats/unpickle_impl.h"
#include "base/printable.h"
#include "base/status.h"

enum { CLASS_SHOWN_MAX = 120 };

static int unknown_class(const struct unpickle_machine *m, const uint8_t *module, size_t module_len,
                         const uint8_t *name, size_t name_len) {
    char shown[2 * CLASS_SHOWN_MAX + 2];
    size_t used = module_len < CLASS_SHOWN_MAX ? module_len : CLASS_SHOWN_MAX;
    memcpy(shown, module, used);
    shown[used++] = '.';
    size_t more = name_len < CLASS_SHOWN_MAX ? name_len : CLASS_SHOWN_MAX;
    memcpy(shown + used, name, more);
    used += more;
    printable_clean(shown, used, false);
    return status_fail(MUSTER_ECORRUPT,
                       "it names the class %.*s, which is not known here (nothing was executed) at byte %zu of the "
                       "pickle",
                       (int)used, shown, m->at_op);
}

static int push_class(struct unpickle_machine *m, const uint8_t *module, size_t module_len, const uint8_t *name,
                      size_t name_len) {
    for (size_t i = 0; i < m->classes.count; i++) {
        const struct unpickle_class *known = &m->classes.list[i];
        if (unpickle_text_is(name, name_len, known->name) && unpickle_text_is(module, module_len, known->module)) {
            return unpickle_push(m, (struct unpickle_value){.kind = UNPICKLE_CLASS, .index = (uint32_t)i});
        }
    }
    return unknown_class(m, module, module_len, name, name_len);
}

int unpickle_stack_global(struct unpickle_machine *m) {
    struct unpickle_value module, name;
    int code = unpickle_pop_kind(m, UNPICKLE_TEXT, &name);
    code = code ? code : unpickle_pop_kind(m, UNPICKLE_TEXT, &module);
    return code ? code : push_class(m, module.bytes, module.size, name.bytes, name.size);
}

static const uint8_t *take_line(struct unpickle_machine *m, size_t *out_len) {
    const uint8_t *line = m->bytes + m->at;
    const uint8_t *end = memchr(line, '\n', m->len - m->at);
    if (!end) {
        (void)unpickle_corrupt(m, "a line has no end");
        return NULL;
    }
    *out_len = (size_t)(end - line);
    m->at += *out_len + 1;
    return line;
}

int unpickle_global(struct unpickle_machine *m) {
    size_t module_len = 0, name_len = 0;
    const uint8_t *module = take_line(m, &module_len);
    const uint8_t *name = module ? take_line(m, &name_len) : NULL;
    return name ? push_class(m, module, module_len, name, name_len) : MUSTER_ECORRUPT;
}

/* REDUCE and NEWOBJ: a class and its arguments become an object that remembers them. */
int unpickle_make_object(struct unpickle_machine *m) {
    struct unpickle_value args, class;
    int code = unpickle_pop_kind(m, UNPICKLE_TUPLE, &args);
    code = code ? code : unpickle_pop_kind(m, UNPICKLE_CLASS, &class);
    return code ? code
                : unpickle_push_node(m, UNPICKLE_OBJECT,
                                     (struct unpickle_node){.head = UNPICKLE_NIL,
                                                            .tail = UNPICKLE_NIL,
                                                            .class = class.index,
                                                            .args = args,
                                                            .state = {.kind = UNPICKLE_MARK}});
}

int unpickle_build(struct unpickle_machine *m) {
    struct unpickle_value state;
    int code = unpickle_pop(m, &state);
    const struct unpickle_value *object = code ? NULL : unpickle_top(m);
    if (!object) {
        return MUSTER_ECORRUPT;
    }
    if (object->kind != UNPICKLE_OBJECT || node_of(m, object)->state.kind != UNPICKLE_MARK) {
        return unpickle_corrupt(m, "a state has no object, or one that has a state");
    }
    node_of(m, object)->state = state;
    return 0;
}

int unpickle_persistent(struct unpickle_machine *m) {
    struct unpickle_value name;
    int code = unpickle_pop(m, &name);
    return code ? code
                : unpickle_push_node(m, UNPICKLE_PERSISTENT,
                                     (struct unpickle_node){.head = UNPICKLE_NIL, .tail = UNPICKLE_NIL, .args = name});
}
