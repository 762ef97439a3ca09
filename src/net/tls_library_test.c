/* Which OpenSSL is taken, where there are several, one, or none. */
#include "net/tls_library.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/library.h"
#include "base/status.h"

/* Two libraries that may be there, and what each of them lacks. */
static struct fake {
    const char *name;
    bool is_there;
    const char *lacks;
} fakes[] = {{.name = "libssl.so.3"}, {.name = "libssl.so.1.1"}};

void *__wrap_library_open(const char *name, const char **out_reason);
void *__wrap_library_open(const char *name, const char **out_reason) {
    for (size_t i = 0; i < sizeof fakes / sizeof *fakes; i++) {
        if (strcmp(fakes[i].name, name) == 0 && fakes[i].is_there) {
            return &fakes[i];
        }
    }
    *out_reason = name[strlen(name) - 1] == '3' ? "three is missing" : "one is missing";
    return NULL;
}

bool __wrap_library_find(void *library, const char *name, void *out, size_t size);
bool __wrap_library_find(void *library, const char *name, void *out, size_t size) {
    const struct fake *fake = library;
    memcpy(out, &library, size); /* a function of which library */
    return !fake->lacks || strcmp(fake->lacks, name) != 0;
}

static void put(bool three, const char *three_lacks, bool one, const char *one_lacks) {
    fakes[0].is_there = three;
    fakes[0].lacks = three_lacks;
    fakes[1].is_there = one;
    fakes[1].lacks = one_lacks;
}

/* That all of it comes from one library. */
static void expect(const struct fake *fake) {
    struct tls_library library;
    memset(&library, 0, sizeof library);
    assert_int_equal(tls_library_open(&library), 0);
    assert_string_equal(library.name, fake->name);
#define TLS_LIBRARY_CHECK(function) assert_memory_equal(&library.function, &fake, sizeof fake);
    TLS_LIBRARY_TABLE(TLS_LIBRARY_CHECK)
#undef TLS_LIBRARY_CHECK
}

static void the_newer_one_is_taken(void **state) {
    (void)state;
    put(true, NULL, true, NULL);
    expect(&fakes[0]);
    put(true, NULL, false, NULL);
    expect(&fakes[0]);
}

static void the_older_one_where_it_is_alone(void **state) {
    (void)state;
    put(false, NULL, true, NULL);
    expect(&fakes[1]);
}

static void the_older_one_where_the_newer_lacks_something(void **state) {
    (void)state;
    put(true, "HMAC_CTX_new", true, NULL);
    expect(&fakes[1]);
}

static void none_says_what_is_wrong_with_each(void **state) {
    struct tls_library library = {.name = "before"};
    (void)state;
    put(false, NULL, false, NULL);
    assert_int_equal(tls_library_open(&library), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "need OpenSSL 3 or 1.1.1"));
    assert_non_null(strstr(muster_detail(), ": three is missing; one is missing"));
    put(false, NULL, true, "SSL_CTX_set_num_tickets"); /* as 1.1.0, which does not speak TLS 1.3 */
    assert_int_equal(tls_library_open(&library), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), ": three is missing; libssl.so.1.1 has no SSL_CTX_set_num_tickets"));
    assert_string_equal(library.name, "before");
}

/* The numbers that each version gives the alert "bad certificate" (42) of the other side: 1000 + 42. */
static void the_reason_of_an_error_is_cut_out(void **state) {
    struct tls_library library;
    (void)state;
    put(true, NULL, false, NULL);
    assert_int_equal(tls_library_open(&library), 0);
    assert_int_equal(0x0A000412UL & library.reason_mask, 1042); /* library 20 */
    put(false, NULL, true, NULL);
    assert_int_equal(tls_library_open(&library), 0);
    assert_int_equal(0x14094412UL & library.reason_mask, 1042); /* library 20, function 148 */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_newer_one_is_taken),
        cmocka_unit_test(the_older_one_where_it_is_alone),
        cmocka_unit_test(the_older_one_where_the_newer_lacks_something),
        cmocka_unit_test(none_says_what_is_wrong_with_each),
        cmocka_unit_test(the_reason_of_an_error_is_cut_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
