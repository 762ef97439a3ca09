/* HMAC-SHA256 against the vectors of RFC 4231. */
#include "net/hmac.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

struct vector {
    size_t key_len;
    const char *key;
    const char *data;
    const char *tag; /* in hexadecimal digits */
};

static void check(struct hmac *hmac, const struct vector *v, size_t cut) {
    uint8_t tag[HMAC_BYTES];
    char text[2 * HMAC_BYTES + 1];
    size_t len = strlen(v->data);
    const struct hmac_part parts[] = {{v->data, cut}, {NULL, 0}, {v->data + cut, len - cut}};
    assert_int_equal(hmac_sign(hmac, v->key, v->key_len, parts, 3, tag), 0);
    for (size_t i = 0; i < HMAC_BYTES; i++) {
        (void)snprintf(text + 2 * i, 3, "%02x", tag[i]);
    }
    assert_string_equal(text, v->tag);
}

static void vectors_of_the_standard(void **state) {
    static char long_key[131];
    const struct vector vectors[] = {
        {20, "\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b", "Hi There",
         "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"},
        {4, "Jefe", "what do ya want for nothing?", "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"},
        {sizeof long_key, long_key, "Test Using Larger Than Block-Size Key - Hash Key First",
         "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"},
    };
    struct hmac *hmac;
    (void)state;
    memset(long_key, 0xaa, sizeof long_key);
    assert_int_equal(hmac_create(&hmac), 0);
    for (size_t i = 0; i < sizeof vectors / sizeof *vectors; i++) {
        check(hmac, &vectors[i], 0); /* one object serves all keys, one after the other */
        check(hmac, &vectors[i], 3);
    }
    hmac_free(hmac);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(vectors_of_the_standard)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
