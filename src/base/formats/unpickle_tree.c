/* Looking into what a pickle has become; see unpickle.h. */
#include "base/formats/unpickle_impl.h"

const struct unpickle_node *unpickled_node(const struct unpickled *tree, const struct unpickle_value *value) {
    return value->kind >= UNPICKLE_TUPLE ? &tree->nodes[value->index] : NULL;
}

const struct unpickle_item *unpickled_first(const struct unpickled *tree, const struct unpickle_value *container) {
    const struct unpickle_node *node = unpickled_node(tree, container);
    return node && node->head != UNPICKLE_NIL ? &tree->items[node->head] : NULL;
}

const struct unpickle_item *unpickled_next(const struct unpickled *tree, const struct unpickle_item *item) {
    return item->next != UNPICKLE_NIL ? &tree->items[item->next] : NULL;
}

uint32_t unpickled_count(const struct unpickled *tree, const struct unpickle_value *container) {
    const struct unpickle_node *node = unpickled_node(tree, container);
    return node ? node->count : 0;
}

const struct unpickle_value *unpickled_at(const struct unpickled *tree, const struct unpickle_value *tuple,
                                          uint32_t index) {
    if (tuple->kind != UNPICKLE_TUPLE || index >= tree->nodes[tuple->index].count) {
        return NULL;
    }
    return &tree->items[tree->nodes[tuple->index].head + index].value;
}

const struct unpickle_value *unpickled_member(const struct unpickled *tree, const struct unpickle_value *dict,
                                              const char *key) {
    bool is_small = dict->kind == UNPICKLE_DICT && unpickled_count(tree, dict) / 2 <= UNPICKLE_MEMBERS_MAX;
    const struct unpickle_item *item = is_small ? unpickled_first(tree, dict) : NULL;
    while (item) {
        const struct unpickle_item *value = unpickled_next(tree, item);
        if (unpickled_is_text(&item->value, key)) {
            return &value->value;
        }
        item = unpickled_next(tree, value);
    }
    return NULL;
}

const struct unpickle_class *unpickled_class(const struct unpickled *tree, const struct unpickle_value *value) {
    if (value->kind != UNPICKLE_CLASS && value->kind != UNPICKLE_OBJECT) {
        return NULL;
    }
    size_t index = value->kind == UNPICKLE_CLASS ? value->index : tree->nodes[value->index].class;
    return index < tree->classes.count ? &tree->classes.list[index] : &tree->others[index - tree->classes.count];
}

bool unpickled_is_text(const struct unpickle_value *value, const char *text) {
    return value->kind == UNPICKLE_TEXT && unpickle_text_is(value->bytes, value->size, text);
}
