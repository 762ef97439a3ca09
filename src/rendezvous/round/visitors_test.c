/* Cards of agents that cannot meet, and the keys that tell of PyTorch's agents. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rendezvous/round/visitors.h"

static struct visitors node(const char *backend, const char *run_id, const char *nnodes) {
    struct visitors v;
    visitors_init(&v, backend, run_id, nnodes, "host-a (pid 1)");
    return v;
}

static void expect(const struct visitors *v, const char *text) {
    char out[VISITORS_TEXT_SIZE];
    assert_string_equal(visitors_text(v, out), text);
}

static bool hears(struct visitors *v, const char *key, const char *value) {
    return visitors_heard(v, kv_slice_text(key), kv_slice_text(value));
}

static void the_host_is_read(void **state) {
    (void)state;
    struct visitors a = node("c10d", "7", "2"), b = node("static", "none", "2");
    char card[VISITORS_CARD_SIZE];
    expect(&a, "");
    assert_false(visitors_read_host(&a, kv_slice_text(visitors_card(&a, card))));
    assert_false(visitors_read_host(&a, kv_slice_text("")));
    assert_true(visitors_read_host(&a, kv_slice_text(visitors_card(&b, card))));
    expect(&a,
           "; the host of the store, host-a (pid 1), has --rdzv-backend=static (here c10d) --rdzv-id=none (here 7): "
           "start all nodes with the same");
}

static void a_card_is_heard_once(void **state) {
    (void)state;
    struct visitors a = node("c10d", "7", "2"), b = node("c10d", "7", "1");
    char card[VISITORS_CARD_SIZE];
    (void)visitors_card(&b, card);
    assert_true(hears(&a, "/muster/visit", card));
    assert_false(hears(&a, "/muster/visit", card));
    assert_false(hears(&a, "/muster/visit", visitors_card(&a, card)));
    assert_false(hears(&a, "/muster/visit", "")); /* it has been deleted */
    expect(&a, "; another agent, host-a (pid 1), has --nnodes=1 (here 2): start all nodes with the same");
}

static void keys_of_torchrun_tell(void **state) {
    (void)state;
    static const char *const no_news[] = {"/torch.rendezvous.7",
                                          "/torch.rendezvous.8.1/torchelastic/role_info/0",
                                          "/torch.rendezvous.8.muster/a_1_0",
                                          "torch.rendezvous.8",
                                          "/7/muster/node/1",
                                          "/",
                                          "/init/"};
    struct visitors a = node("c10d", "7", "2");
    for (size_t i = 0; i < sizeof no_news / sizeof *no_news; i++) {
        assert_false(hears(&a, no_news[i], "x"));
    }
    assert_true(hears(&a, "/torch.rendezvous.8", "x"));
    assert_true(hears(&a, "/none/torchelastic/role_info/1", "x"));
    expect(&a, "; another agent has --rdzv-id=8 (here 7); another agent has --rdzv-backend=static"
               " (here c10d) --rdzv-id=none (here 7): start all nodes with the same");
    struct visitors b = node("static", "none", "2"), c = node("c10d", "8", "2");
    char card[VISITORS_CARD_SIZE], text[VISITORS_TEXT_SIZE];
    assert_false(hears(&a, "/muster/visit", visitors_card(&c, card))); /* the same agent, with its name */
    assert_non_null(
        strstr(visitors_text(&a, text), "another agent, host-a (pid 1), has --rdzv-id=8 (here 7); another agent has"));
    assert_false(hears(&b, "/none/torchelastic/role_info/1", "x"));
    assert_true(hears(&b, "/torch.rendezvous.none", "x"));
}

static void what_strangers_write_is_bounded_and_clean(void **state) {
    (void)state;
    struct visitors a = node("c10d", "7", "2");
    char key[64], text[VISITORS_TEXT_SIZE];
    for (int i = 0; i < 10; i++) {
        (void)snprintf(key, sizeof key, "/torch.rendezvous.%d0\x1b[31m", i);
        assert_int_equal(hears(&a, key, "x"), i < VISITORS_MAX);
    }
    assert_null(strchr(visitors_text(&a, text), '\x1b'));
    char *long_key = calloc(1, 10000);
    assert_non_null(long_key);
    memset(long_key, 'x', 9999);
    memcpy(long_key, "/torch.rendezvous.", 18);
    assert_false(hears(&a, long_key, "x"));
    memcpy(long_key, "c10d\n", 5);
    struct visitors b = node("c10d", "7", "2");
    assert_true(hears(&b, "/muster/visit", long_key));
    free(long_key);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_is_read),
        cmocka_unit_test(a_card_is_heard_once),
        cmocka_unit_test(keys_of_torchrun_tell),
        cmocka_unit_test(what_strangers_write_is_bounded_and_clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
