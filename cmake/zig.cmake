# Toolchain file: compiles for an older C library, or for another machine, with the compiler of the Zig project (`zig cc`).
# tools/build-wheels uses it.
#
#   MUSTER_ZIG      the program zig
#   MUSTER_TARGET   what to compile for, such as aarch64-linux-gnu.2.28: machine, system, version of the C library
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES MUSTER_ZIG MUSTER_TARGET)
string(REGEX MATCH "^[^-]+" CMAKE_SYSTEM_PROCESSOR "${MUSTER_TARGET}")
set(CMAKE_SYSTEM_NAME Linux)

set(CMAKE_C_COMPILER ${MUSTER_ZIG} cc -target ${MUSTER_TARGET})
# With optimisation zig cc turns assertions off by itself, and without it looks for undefined behaviour. Neither is wanted.
set(CMAKE_C_FLAGS_INIT "-UNDEBUG -fno-sanitize=undefined")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-pie") # what the compilers of distributions do

# CMake wants a program without arguments here.
foreach(tool IN ITEMS ar ranlib)
  string(TOUPPER ${tool} name)
  set(script ${CMAKE_BINARY_DIR}/zig-${tool})
  if(NOT EXISTS ${script})
    file(WRITE ${script} "#!/bin/sh\nexec ${MUSTER_ZIG} ${tool} \"$@\"\n")
    file(CHMOD ${script} PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endif()
  set(CMAKE_${name} ${script} CACHE FILEPATH "" FORCE)
endforeach()

# Nothing of this machine fits another one.
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
