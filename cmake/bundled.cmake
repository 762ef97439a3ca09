# For tools/build-wheels: libuv and jansson compiled from their sources, and linked as static libraries, under the names that the rest
# of the build knows. MUSTER_BUNDLED is the folder that the tool has filled: libuv, jansson, xxhash, cmocka, and include, the headers of
# what is opened at run time (OpenSSL, libcurl, hwloc).
set(XXHASH_INCLUDE_DIR ${MUSTER_BUNDLED}/xxhash CACHE PATH "")

function(muster_bundled name)
  cmake_parse_arguments(ARG "" "" "SOURCES;INCLUDES;DEFINITIONS;DEPS" ${ARGN})
  string(TOLOWER bundled_${name} target)
  add_library(${target} STATIC EXCLUDE_FROM_ALL ${ARG_SOURCES})
  target_include_directories(${target} SYSTEM PUBLIC ${ARG_INCLUDES})
  target_compile_definitions(${target} PRIVATE _GNU_SOURCE ${ARG_DEFINITIONS})
  # Others' code, and others' warnings. Hidden: a program that links libmuster may have its own.
  target_compile_options(${target} PRIVATE -w -fvisibility=hidden -fno-strict-aliasing -fstack-protector-strong -U_FORTIFY_SOURCE
    -D_FORTIFY_SOURCE=2 -ffile-prefix-map=${MUSTER_BUNDLED}/=)
  target_link_libraries(${target} PUBLIC ${ARG_DEPS})
  add_library(PkgConfig::${name} ALIAS ${target})
endfunction()

# What its own build compiles for Linux.
file(GLOB uv_sources ${MUSTER_BUNDLED}/libuv/src/*.c)
foreach(name IN ITEMS async core dl epoll fs getaddrinfo getnameinfo linux-core linux-inotify linux-syscalls loop loop-watcher pipe poll
    process procfs-exepath proctitle random-devurandom random-getrandom random-sysctl-linux signal stream tcp thread tty udp)
  list(APPEND uv_sources ${MUSTER_BUNDLED}/libuv/src/unix/${name}.c)
endforeach()
muster_bundled(LIBUV SOURCES ${uv_sources} INCLUDES ${MUSTER_BUNDLED}/libuv/include DEFINITIONS _FILE_OFFSET_BITS=64 _LARGEFILE_SOURCE
  DEPS Threads::Threads ${CMAKE_DL_LIBS} rt)
target_include_directories(bundled_libuv PRIVATE ${MUSTER_BUNDLED}/libuv/src)

# What its configure script finds on every machine that Muster is for.
set(json_inline inline)
foreach(fact IN ITEMS long_long localeconv atomic_builtins sync_builtins)
  set(json_have_${fact} 1)
endforeach()
configure_file(${MUSTER_BUNDLED}/jansson/src/jansson_config.h.in ${CMAKE_BINARY_DIR}/bundled/jansson_config.h @ONLY)
set(facts "#define USE_URANDOM 1\n#define INITIAL_HASHTABLE_ORDER 3\n")
foreach(fact IN ITEMS ENDIAN_H FCNTL_H SCHED_H UNISTD_H SYS_PARAM_H SYS_STAT_H SYS_TIME_H SYS_TYPES_H STDINT_H CLOSE GETPID GETTIMEOFDAY OPEN
    READ SCHED_YIELD STRTOLL LOCALECONV ATOMIC_BUILTINS SYNC_BUILTINS)
  string(APPEND facts "#define HAVE_${fact} 1\n")
endforeach()
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/bundled/jansson_private_config.h CONTENT "${facts}")
file(GLOB jansson_sources ${MUSTER_BUNDLED}/jansson/src/*.c)
muster_bundled(JANSSON SOURCES ${jansson_sources} INCLUDES ${MUSTER_BUNDLED}/jansson/src ${CMAKE_BINARY_DIR}/bundled DEFINITIONS HAVE_CONFIG_H)
set(MUSTER_LIBRARY_JANSSON PkgConfig::JANSSON)

# For unit tests, which run where MUSTER_TEST_ROOT is the root of a system of that machine (tools/test-aarch64).
if(NOT MUSTER_PACKAGE)
  set(facts "")
  foreach(fact IN ITEMS ASSERT_H INTTYPES_H MALLOC_H MEMORY_H SETJMP_H SIGNAL_H STDARG_H STDDEF_H STDINT_H STDIO_H STDLIB_H STRINGS_H STRING_H
      SYS_STAT_H SYS_TYPES_H TIME_H UNISTD_H STRUCT_TIMESPEC CALLOC EXIT FPRINTF SNPRINTF VSNPRINTF FREE LONGJMP SIGLONGJMP MALLOC MEMCPY
      MEMSET PRINTF SETJMP SIGNAL STRCMP STRSIGNAL CLOCK_GETTIME GCC_THREAD_LOCAL_STORAGE CLOCK_REALTIME)
    string(APPEND facts "#define HAVE_${fact} 1\n")
  endforeach()
  file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/bundled/cmocka/config.h CONTENT "${facts}")
  muster_bundled(CMOCKA SOURCES ${MUSTER_BUNDLED}/cmocka/src/cmocka.c INCLUDES ${MUSTER_BUNDLED}/cmocka/include ${CMAKE_BINARY_DIR}/bundled/cmocka
    DEFINITIONS HAVE_CONFIG_H)
  set(CMOCKA_FOUND TRUE)
endif()

# Headers alone.
foreach(name IN ITEMS OPENSSL CURL)
  add_library(bundled_${name} INTERFACE)
  target_include_directories(bundled_${name} SYSTEM INTERFACE ${MUSTER_BUNDLED}/include)
  add_library(PkgConfig::${name} ALIAS bundled_${name})
endforeach()
if(MUSTER_TEST_ROOT) # what makes certificates; it may need a newer C library than what is built here
  target_link_libraries(bundled_OPENSSL INTERFACE ${MUSTER_TEST_ROOT}/usr/lib/${CMAKE_SYSTEM_PROCESSOR}-linux-gnu/libcrypto.so.3
    -Wl,--allow-shlib-undefined)
endif()
set(HWLOC_FOUND TRUE)
foreach(name IN ITEMS OPENSSL CURL HWLOC)
  set(${name}_INCLUDE_DIRS ${MUSTER_BUNDLED}/include)
endforeach()
