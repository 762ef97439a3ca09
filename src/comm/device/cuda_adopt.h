/* A CUDA driver that the program has started itself. */
#ifndef COMM_CUDA_ADOPT_H
#define COMM_CUDA_ADOPT_H

/* If the process has loaded and initialised the driver, cuda_library_if_open() finds it from now on. Loads and starts
 * nothing: a process that leaves GPUs alone goes on doing so. Costs a question to the loader, which is short while no
 * other library has been loaded, and one load once the driver is found: for the head of a call that saves or loads, not
 * for each buffer. Any thread. */
void cuda_library_adopt(void);

#endif
