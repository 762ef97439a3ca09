/* Classes and objects of the machine of pickles; see unpickle_impl.h. */
#include <stdlib.h>

#include "base/formats/unpickle_impl.h"
#include "base/printable.h"
#include "base/status.h"
#include "base/str.h"

enum { CLASS_SHOWN_MAX = 120, OTHERS_MAX = 64 };

/* As much of a name as is shown. */
struct shown {
    char text[CLASS_SHOWN_MAX + 1];
};

static struct shown show(const uint8_t *bytes, size_t len) {
    struct shown out = {.text = ""};
    size_t count = len < CLASS_SHOWN_MAX ? len : CLASS_SHOWN_MAX;
    memcpy(out.text, bytes, count);
    printable_clean(out.text, count, false);
    return out;
}

static int unknown_class(const struct unpickle_machine *m, const struct shown *module, const struct shown *name) {
    return status_fail(MUSTER_ECORRUPT,
                       "it names the class %s.%s, which is not known here (nothing was executed) at byte %zu of the "
                       "pickle",
                       module->text, name->text, m->at_op);
}

void unpickle_free_others(struct unpickle_class *others, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        free((char *)(uintptr_t)others[i].module);
        free((char *)(uintptr_t)others[i].name);
    }
    free(others);
}

static bool is_called(const struct unpickle_class *class, const struct shown *module, const struct shown *name) {
    return class->module && class->name && strcmp(class->module, module->text) == 0 &&
           strcmp(class->name, name->text) == 0;
}

static int no_memory(void) {
    return status_fail(MUSTER_ENOMEM, "no memory to read a pickle");
}

static int add_other(struct unpickle_machine *m, const char *module, const char *name) {
    struct unpickle_class other = {strdup(module), strdup(name), m->classes.others_role, 0};
    if (!other.module || !other.name) {
        free((char *)(uintptr_t)other.module);
        free((char *)(uintptr_t)other.name);
        return no_memory();
    }
    m->others[m->other_count++] = other;
    return 0;
}

/* All those that have no place of their own. */
static int add_last_other(struct unpickle_machine *m) {
    struct shown all;
    (void)str_format(all.text, sizeof all.text, "one of more than %d classes", OTHERS_MAX);
    return add_other(m, all.text, "");
}

/* A class that is not on the list: the place of its name, which it shares with those beyond OTHERS_MAX. */
static int push_other(struct unpickle_machine *m, const struct shown *module, const struct shown *name) {
    uint32_t at = 0;
    int code = 0;
    m->others = m->others ? m->others : calloc(OTHERS_MAX, sizeof *m->others);
    if (!m->others) {
        return no_memory();
    }
    while (at < m->other_count && !is_called(&m->others[at], module, name)) {
        at++;
    }
    at = at < OTHERS_MAX ? at : OTHERS_MAX - 1;
    if (at == m->other_count) {
        code = at + 1 < OTHERS_MAX ? add_other(m, module->text, name->text) : add_last_other(m);
    }
    return code ? code
                : unpickle_push(
                      m, (struct unpickle_value){.kind = UNPICKLE_CLASS, .index = (uint32_t)m->classes.count + at});
}

static int push_class(struct unpickle_machine *m, const uint8_t *module, size_t module_len, const uint8_t *name,
                      size_t name_len) {
    for (size_t i = 0; i < m->classes.count; i++) {
        const struct unpickle_class *known = &m->classes.list[i];
        if (unpickle_text_is(name, name_len, known->name) && unpickle_text_is(module, module_len, known->module)) {
            return unpickle_push(m, (struct unpickle_value){.kind = UNPICKLE_CLASS, .index = (uint32_t)i});
        }
    }
    const struct shown shown_module = show(module, module_len), shown_name = show(name, name_len);
    return m->classes.takes_others ? push_other(m, &shown_module, &shown_name)
                                   : unknown_class(m, &shown_module, &shown_name);
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

/* What is called is a class, or where all are taken, an object ("getattr(C, 'f')(...)"), which has the class of its
 * maker, or anything. */
static int pop_called(struct unpickle_machine *m, uint32_t *out) {
    struct unpickle_value called;
    static const struct shown unknown = {.text = "something that was called"}, none = {.text = ""};
    int code = m->classes.takes_others ? unpickle_pop(m, &called) : unpickle_pop_kind(m, UNPICKLE_CLASS, &called);
    if (code == 0 && called.kind != UNPICKLE_CLASS && called.kind != UNPICKLE_OBJECT) {
        code = push_other(m, &unknown, &none);
        code = code ? code : unpickle_pop(m, &called);
    }
    if (code == 0) {
        *out = called.kind == UNPICKLE_CLASS ? called.index : node_of(m, &called)->class;
    }
    return code;
}

int unpickle_make_object(struct unpickle_machine *m, bool has_names) {
    struct unpickle_value args, names;
    uint32_t class = 0;
    int code = has_names ? unpickle_pop(m, &names) : 0;
    code = code ? code : unpickle_pop_kind(m, UNPICKLE_TUPLE, &args);
    code = code ? code : pop_called(m, &class);
    return code ? code
                : unpickle_push_node(m, UNPICKLE_OBJECT,
                                     (struct unpickle_node){.head = UNPICKLE_NIL,
                                                            .tail = UNPICKLE_NIL,
                                                            .class = class,
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
    bool is_free = object->kind == UNPICKLE_OBJECT && node_of(m, object)->state.kind == UNPICKLE_MARK;
    if (is_free) {
        node_of(m, object)->state = state;
    }
    return is_free || m->classes.takes_others ? 0
                                              : unpickle_corrupt(m, "a state has no object, or one that has a state");
}

int unpickle_persistent(struct unpickle_machine *m) {
    struct unpickle_value name;
    int code = unpickle_pop(m, &name);
    return code ? code
                : unpickle_push_node(m, UNPICKLE_PERSISTENT,
                                     (struct unpickle_node){.head = UNPICKLE_NIL, .tail = UNPICKLE_NIL, .args = name});
}
