/* Where temporary files go. */
#ifndef BASE_TEMPORARY_H
#define BASE_TEMPORARY_H

/* The first folder that can be written to, of the places where Python's tempfile looks, in its order: $TMPDIR, $TEMP,
 * $TMP, /tmp, /var/tmp, /usr/tmp; else ".". Borrowed from the environment. */
const char *temporary_folder(void);

#endif
