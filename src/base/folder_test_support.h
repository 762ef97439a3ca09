/* For tests that write into a folder of their own: how it goes. */
#ifndef BASE_FOLDER_TEST_SUPPORT_H
#define BASE_FOLDER_TEST_SUPPORT_H

/* Removes the folder with the files in it. Returns how many these were; 0 too if there is no such folder; -1 if
 * anything is left, such as a folder in it or a file whose name begins with a dot. */
int folder_remove(const char *path);

#endif
