/* The machine of pickles: each kind of value, what memo and containers do, and what is refused. Real PyTorch's pickles
 * are read in tests/peer. */
#include "base/formats/unpickle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

enum { VALUES_MAX = 64 };

static const struct unpickle_class class_list[] = {{"a.b", "C", 7, 0}, {"a", "f", 8, 1}};
static const struct unpickle_classes classes = {.list = class_list, .count = 2};
static const struct unpickle_classes all_classes = {
    .list = class_list, .count = 2, .takes_others = true, .others_role = 9};

/* An allocation of exactly its size, so that a sanitizer sees a read past the end. It stays, since trees point into it.
 */
static uint8_t *input;

struct read {
    struct unpickled tree;
    int code;
};

static void read_with(struct read *r, const char *bytes, size_t len, struct unpickle_classes known) {
    *r = (struct read){.code = 0};
    input = malloc(len ? len : 1);
    assert_non_null(input);
    memcpy(input, bytes, len);
    r->code = unpickle(input, len, known, VALUES_MAX, &r->tree);
}

static void read_bytes(struct read *r, const char *bytes, size_t len) {
    read_with(r, bytes, len, classes);
}
#define READ(r, text) read_bytes(r, text, sizeof(text) - 1)

static void done(struct read *r) {
    unpickled_done(&r->tree);
    free(input);
}

static void scalars(void **state) {
    (void)state;
    /* {"i": -2, "r": 0.25, "t": True, "n": None, "b": b"xy", "l": -(2**40), "z": 0} */
    struct read r;
    READ(&r, "\x80\2}(X\1\0\0\0iJ\xfe\xff\xff\xffX\1\0\0\0rG?\xd0\0\0\0\0\0\0X\1\0\0\0t\x88X\1\0\0\0nN"
             "\x8c\1bC\2xyX\1\0\0\0l\x8a\6\0\0\0\0\0\xff\x8c\1z\x8a\0u.");
    assert_int_equal(r.code, 0);
    const struct unpickle_value *root = &r.tree.root;
    assert_int_equal(root->kind, UNPICKLE_DICT);
    assert_int_equal(unpickled_count(&r.tree, root), 14);
    assert_int_equal(unpickled_member(&r.tree, root, "i")->number, -2);
    assert_true(unpickled_member(&r.tree, root, "r")->real == 0.25);
    assert_int_equal(unpickled_member(&r.tree, root, "t")->number, 1);
    assert_int_equal(unpickled_member(&r.tree, root, "n")->kind, UNPICKLE_NONE);
    assert_int_equal(unpickled_member(&r.tree, root, "b")->size, 2);
    assert_true(unpickled_member(&r.tree, root, "l")->number == -(INT64_C(1) << 40));
    assert_int_equal(unpickled_member(&r.tree, root, "z")->number, 0);
    assert_null(unpickled_member(&r.tree, root, "absent"));
    done(&r);
}

static void containers_grow_in_batches_and_one_by_one(void **state) {
    (void)state;
    /* [1, 2, 3] in two batches and a single; a tuple; a set */
    struct read r;
    READ(&r, "\x80\4](K\1K\2eK\3aK\7K\x08K\x09\x87\x8f(K\5K\6\x90\x87.");
    assert_int_equal(r.code, 0);
    const struct unpickle_value *list = unpickled_at(&r.tree, &r.tree.root, 0), *tuple;
    int64_t wanted = 1;
    for (const struct unpickle_item *item = unpickled_first(&r.tree, list); item;
         item = unpickled_next(&r.tree, item)) {
        assert_int_equal(item->value.number, wanted++);
    }
    assert_int_equal(wanted, 4);
    tuple = unpickled_at(&r.tree, &r.tree.root, 1);
    assert_int_equal(unpickled_at(&r.tree, tuple, 2)->number, 9);
    assert_null(unpickled_at(&r.tree, tuple, 3));
    assert_null(unpickled_at(&r.tree, list, 0)); /* no tuple */
    assert_int_equal(unpickled_count(&r.tree, unpickled_at(&r.tree, &r.tree.root, 2)), 2);
    done(&r);
}

static void a_call_becomes_an_object(void **state) {
    (void)state;
    /* f(1), with items and a state; C.__new__(C); a persistent name */
    struct read r;
    READ(&r, "\x80\4ca\nf\nK\1\x85R(K\1K\2u}b\x8c\3a.b\x8c\1C\x93)\x81K\5Q\x87.");
    assert_int_equal(r.code, 0);
    const struct unpickle_value *f = unpickled_at(&r.tree, &r.tree.root, 0),
                                *c = unpickled_at(&r.tree, &r.tree.root, 1),
                                *name = unpickled_at(&r.tree, &r.tree.root, 2);
    assert_int_equal(unpickled_class(&r.tree, f)->role, 8);
    assert_int_equal(unpickled_at(&r.tree, &unpickled_node(&r.tree, f)->args, 0)->number, 1);
    assert_int_equal(unpickled_count(&r.tree, f), 2);
    assert_int_equal(unpickled_node(&r.tree, f)->state.kind, UNPICKLE_DICT);
    assert_int_equal(unpickled_class(&r.tree, c)->role, 7);
    assert_int_equal(unpickled_node(&r.tree, c)->state.kind, UNPICKLE_MARK);
    assert_int_equal(name->kind, UNPICKLE_PERSISTENT);
    assert_int_equal(unpickled_node(&r.tree, name)->args.number, 5);
    done(&r);
}

static void the_memo_shares_values(void **state) {
    (void)state;
    struct read r;
    READ(&r, "\x80\2]q\0K\1q\1a0h\0h\1\x86r\2\0\0\0j\2\0\0\0\x86.");
    assert_int_equal(r.code, 0);
    const struct unpickle_value *pair = unpickled_at(&r.tree, &r.tree.root, 1);
    assert_int_equal(unpickled_count(&r.tree, unpickled_at(&r.tree, pair, 0)), 1);
    done(&r);
}

static void what_is_no_such_pickle_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        const char *words;
    } cases[] = {
#define CASE(bytes, words) {bytes, sizeof(bytes) - 1, words}
        CASE("", "ends early"),
        CASE("N\x80\2.", "protocol"),
        CASE("\x80\1N.", "protocol"),
        CASE("\x80\6N.", "protocol"),
        CASE("\x80\2N\x80\2.", "protocol"),
        CASE("\x80\2N", "ends early"),
        CASE("\x80\2.", "one value"),
        CASE("\x80\2NN.", "one value"),
        CASE("\x80\2N.N", "one value"),
        CASE("\x80\2(.", "one value"),
        CASE("\x80\2I1\n.", "opcode 0x49"),
        CASE("\x80\2cos\nsystem\n.", "class os.system"),
        CASE("\x80\2c\x1b\n\x1b\n.", "class ?.?"),
        CASE("\x80\2ca", "line has no end"),
        CASE("\x80\4\x8c\2os\x8c\6system\x93.", "class os.system"),
        CASE("\x80\4K\1\x8c\1f\x93.", "another kind"),
        CASE("\x80\2ca\nf\nK\1R.", "another kind"),
        CASE("\x80\2K\1)R.", "another kind"),
        CASE("\x80\2}}b.", "no object"),
        CASE("\x80\2ca\nf\n)R}b}b.", "one that has a state"),
        CASE("\x80\2K\1K\2a.", "no container"),
        CASE("\x80\2a.", "no container"),
        CASE("\x80\2](a.", "a mark"),
        CASE("\x80\2K\1(K\2e.", "no container"),
        CASE("\x80\2(K\2e.", "no container"),
        CASE("\x80\2}(K\2u.", "no container"),
        CASE("\x80\2](K\2u.", "no container"),
        CASE("\x80\2K\2e.", "no mark"),
        CASE("\x80\2t.", "no mark"),
        CASE("\x80\2K\1\x86.", "longer than the stack"),
        CASE("\x80\2(K\1\x86.", "mark is inside"),
        CASE("\x80\2h\0.", "memo slot is empty"),
        CASE("\x80\2Nq\1.", "out of order"),
        CASE("\x80\2q\0.", "no value"),
        CASE("\x80\2X\xff\xff\xff\xffN.", "longer than what is left"),
        CASE("\x80\4\x8d\xff\xff\xff\xff\xff\xff\xff\xffN.", "longer than what is left"),
        CASE("\x80\2\x8a\x09zN.", "longer than what is left"),
        CASE("\x80\2G\1\2.", "ends early"),
        CASE("\x80\4\x95\1.", "ends early"),
#undef CASE
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct read r;
        read_bytes(&r, cases[i].bytes, cases[i].len);
        if (r.code != MUSTER_ECORRUPT || !strstr(muster_detail(), cases[i].words)) {
            fail_msg("case %zu (%s): %d: %s", i, cases[i].words, r.code, muster_detail());
        }
        done(&r);
    }
}

static const struct unpickle_value *at(const struct read *r, uint32_t index) {
    return unpickled_at(&r->tree, &r->tree.root, index);
}

static void other_classes_are_taken_where_they_are_wanted(void **state) {
    (void)state;
    /* (x.Y(1) with a state twice, a deque of two, f(1), x.Y again, what getattr(x.Y, "f")() gives, what None() gives)
     */
    static const char bytes[] = "\x80\4(cx\nY\nK\1\x85R}b]bcc\nd\n)R(K\1K\2eK\3aca\nf\nK\1\x85R\x8c\1x\x8c\1Y\x93"
                                "cb\ng\ncx\nY\n\x8c\1f\x86R)RN)Rt.";
    struct read r;
    read_with(&r, bytes, sizeof bytes - 1, all_classes);
    assert_int_equal(r.code, 0);
    static const struct {
        const char *module, *name;
        int role;
    } wanted[] = {{"x", "Y", 9}, {"c", "d", 9}, {"a", "f", 8},
                  {"x", "Y", 9}, {"b", "g", 9}, {"something that was called", "", 9}};
    assert_int_equal(unpickled_count(&r.tree, &r.tree.root), 6);
    for (uint32_t i = 0; i < 6; i++) {
        const struct unpickle_class *class = unpickled_class(&r.tree, at(&r, i));
        assert_string_equal(class->module, wanted[i].module);
        assert_string_equal(class->name, wanted[i].name);
        assert_int_equal(class->role, wanted[i].role);
    }
    assert_int_equal(unpickled_node(&r.tree, at(&r, 0))->state.kind, UNPICKLE_DICT); /* the first one */
    assert_int_equal(unpickled_count(&r.tree, at(&r, 1)), 0); /* its items are no keys and values */
    assert_int_equal(r.tree.other_count, 4);
    done(&r);
}

static void other_classes_beyond_a_number_have_no_names(void **state) {
    (void)state;
    char bytes[2048] = "\x80\4(", line[16];
    size_t used = 3;
    for (int i = 0; i < VALUES_MAX; i++) { /* the mark is a value, too */
        int length = snprintf(line, sizeof line, "cm\nc%d\n0", i);
        memcpy(bytes + used, line, (size_t)length);
        used += (size_t)length;
    }
    static const char tail[] = "cm\nc999\ncm\nc3\nt.";
    memcpy(bytes + used, tail, sizeof tail - 1);
    struct read r;
    read_with(&r, bytes, used + sizeof tail - 1, all_classes);
    assert_int_equal(r.code, 0);
    assert_string_equal(unpickled_class(&r.tree, at(&r, 0))->module, "one of more than 64 classes");
    assert_string_equal(unpickled_class(&r.tree, at(&r, 1))->name, "c3");
    done(&r);
}

static void newer_opcodes(void **state) {
    (void)state;
    /* (frozenset({1, 2}), x, x, C.__new__(C, **{}), bytes of 8-byte lengths, a long of 4) */
    struct read r;
    READ(&r, "\x80\5(N(K\1K\2\x91K\7"
             "2(NN1ca.b\nC\n)}\x92\x8e\1\0\0\0\0\0\0\0a\x96\2\0\0\0\0\0\0\0bc\x8b\1\0\0\0\xfft.");
    assert_int_equal(r.code, 0);
    assert_int_equal(unpickled_count(&r.tree, &r.tree.root), 8);
    assert_int_equal(at(&r, 1)->kind, UNPICKLE_SET);
    assert_int_equal(unpickled_count(&r.tree, at(&r, 1)), 2);
    assert_int_equal(at(&r, 3)->number, 7);
    assert_int_equal(unpickled_class(&r.tree, at(&r, 4))->role, 7);
    assert_int_equal(at(&r, 5)->size, 1);
    assert_int_equal(at(&r, 6)->size, 2);
    assert_int_equal(at(&r, 7)->number, -1);
    done(&r);
}

static void each_kind_of_value_has_a_limit(void **state) {
    (void)state;
    static const char *const opcodes[] = {"N", "]0", "\x94", "ca\nf\n)R0", "(K\1K\1ta"};
    for (size_t i = 0; i < sizeof opcodes / sizeof *opcodes; i++) {
        char bytes[1024] = "\x80\4]";
        size_t used = 3, step = strlen(opcodes[i]);
        for (int n = 0; n <= VALUES_MAX; n++, used += step) {
            memcpy(bytes + used, opcodes[i], step);
        }
        struct read r;
        read_bytes(&r, bytes, used);
        assert_int_equal(r.code, MUSTER_ELIMIT);
        assert_non_null(strstr(muster_detail(), "more than 64 values"));
        done(&r);
    }
}

static void every_prefix_of_a_pickle_is_refused(void **state) {
    (void)state;
    static const char whole[] =
        "\x80\4\x95\1\0\0\0\0\0\0\0}\x94(X\1\0\0\0iJ\xfe\xff\xff\xffX\1\0\0\0rG?\xd0\0\0\0\0\0\0"
        "\x8c\1cca\nf\n(K\1K\2tR\x8d\1\0\0\0\0\0\0\0l](K\1eu.";
    for (size_t len = 0; len < sizeof whole - 1; len++) {
        struct read r;
        read_bytes(&r, whole, len);
        assert_int_equal(r.code, MUSTER_ECORRUPT);
        done(&r);
    }
    struct read r;
    READ(&r, "\x80\4N.");
    assert_int_equal(r.code, 0);
    done(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scalars),
        cmocka_unit_test(containers_grow_in_batches_and_one_by_one),
        cmocka_unit_test(a_call_becomes_an_object),
        cmocka_unit_test(the_memo_shares_values),
        cmocka_unit_test(what_is_no_such_pickle_is_refused),
        cmocka_unit_test(other_classes_are_taken_where_they_are_wanted),
        cmocka_unit_test(other_classes_beyond_a_number_have_no_names),
        cmocka_unit_test(newer_opcodes),
        cmocka_unit_test(each_kind_of_value_has_a_limit),
        cmocka_unit_test(every_prefix_of_a_pickle_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
