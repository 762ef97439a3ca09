/* A library that a double of an MPI needs, and that is not there when it is loaded: its file has another name. */
int double_absent(void);
__attribute__((visibility("default"))) int double_absent(void) {
    return 0;
}
