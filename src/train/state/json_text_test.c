/* JSON into our buffers: what does not fit is an error, whichever piece of the text it is. */
#include "train/state/json_text.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

/* The name is longer than the room, all else is shorter: jansson goes on after a name that could not be appended. */
static void a_text_without_room_is_never_taken_for_whole(void **state) {
    (void)state;
    static const char whole[] = "{\"a long name of a member\":1,\"b\":[2,{\"another long one\":\"text\"}]}";
    json_t *tree = NULL;
    assert_int_equal(json_text_parse("it", whole, strlen(whole), &tree), 0);
    for (size_t room = 1; room <= strlen(whole); room++) {
        struct buf out;
        buf_init(&out, room);
        int code = json_text_append(tree, JSON_COMPACT, &out);
        assert_int_equal(code, room < strlen(whole) ? MUSTER_ELIMIT : 0);
        assert_true(code || (out.len == strlen(whole) && memcmp(buf_bytes(&out), whole, out.len) == 0));
        buf_done(&out);
    }
    json_decref(tree);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_text_without_room_is_never_taken_for_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
