# Compiler settings, and the functions that every module's list uses.
add_library(muster_options INTERFACE)
target_compile_definitions(muster_options INTERFACE _GNU_SOURCE)
target_compile_options(muster_options INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wformat=2 -Wcast-align
  $<$<C_COMPILER_ID:GNU>:-Wno-format-truncation> # cutting a message that is too long is intended wherever it happens
  $<$<C_COMPILER_ID:Clang>:-Wno-string-conversion> # assert(!"why")
  $<$<C_COMPILER_ID:Clang>:-Wno-enum-float-conversion> # limits are enumerations, also those of times and rates
  -Wmissing-prototypes -fno-common -fvisibility=hidden
  -ffunction-sections # so that a linker script can place functions (src/cli/CMakeLists.txt)
  -ffile-prefix-map=${CMAKE_SOURCE_DIR}/=)
target_include_directories(muster_options INTERFACE ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
# What distributions build with; stated here, so that every build warns alike. Sanitizers check the same better.
if(NOT MUSTER_SANITIZE)
  target_compile_options(muster_options INTERFACE -fstack-protector-strong
    $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
  target_link_options(muster_options INTERFACE -Wl,-z,relro,-z,now)
endif()
if(MUSTER_WERROR)
  target_compile_options(muster_options INTERFACE -Werror)
endif()
if(MUSTER_SANITIZE)
  target_compile_options(muster_options INTERFACE -fsanitize=${MUSTER_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all -g1) # the lines are all that a report needs
  if(MUSTER_SANITIZE MATCHES address)
    target_compile_definitions(muster_options INTERFACE $<$<C_COMPILER_ID:Clang>:__SANITIZE_ADDRESS__=1>) # as gcc has it
  endif()
  if(MUSTER_SANITIZE MATCHES undefined) # clang's minds NULL + 0, which C2y allows; gcc's (make ubsan) does not
    target_compile_options(muster_options INTERFACE $<$<C_COMPILER_ID:Clang>:-fno-sanitize=pointer-overflow>)
  endif()
  if(MUSTER_SANITIZE MATCHES "undefined|thread") # their checks take longer to compile with -O2
    # gcc guesses at uninitialised variables with -O1; the usual build sees them
    target_compile_options(muster_options INTERFACE -O1 $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  endif()
  target_link_options(muster_options INTERFACE -fsanitize=${MUSTER_SANITIZE})
endif()

# muster_library(name SOURCES a.c b.c DEPS lib ...): a static library of one module. Asserts stay on in release
# builds (CMake's NDEBUG is removed).
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

function(muster_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC muster_options ${ARG_DEPS})
endfunction()

# Unit tests are a third of all that is compiled, and most of what is linked. Unless the build type is Debug, they are linked without
# what a debugger reads, so it is not made, and gcc does not optimize them. What several of them share, and those that compute, have
# -O1. (gcc guesses at uninitialised variables with -O1. Without optimization glibc's checks of buffers do nothing but warn.)
add_library(muster_test_options INTERFACE)
add_library(muster_plain_test_options INTERFACE)
if(NOT MUSTER_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL Debug)
  target_compile_options(muster_test_options INTERFACE -O1 -g0 $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  target_compile_options(muster_plain_test_options INTERFACE -O0 -g0 "SHELL:-U_FORTIFY_SOURCE")
  foreach(options muster_test_options muster_plain_test_options)
    target_link_options(${options} INTERFACE -Wl,--strip-debug)
  endforeach()
endif()

# For a folder of programs that only tests run: its targets, and those of folders below, are compiled and linked as if they were shared by
# unit tests.
macro(muster_folder_of_tests)
  if(NOT MUSTER_SANITIZE AND NOT CMAKE_BUILD_TYPE STREQUAL Debug)
    add_compile_options(-O1 -g0 $<$<C_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    add_link_options(-Wl,--strip-debug)
  endif()
endmacro()

# muster_shared_object(out source.c lib ...): what several programs of a folder link is compiled once, whatever the first of
# them needs to compile it; `out` is to stand among their sources.
function(muster_shared_object out source)
  get_filename_component(path ${source} ABSOLUTE)
  file(RELATIVE_PATH name ${CMAKE_SOURCE_DIR} ${path})
  string(MAKE_C_IDENTIFIER "${name}" name)
  if(NOT TARGET ${name})
    add_library(${name} OBJECT ${source})
    target_link_libraries(${name} PRIVATE ${ARGN})
  endif()
  set(${out} $<TARGET_OBJECTS:${name}> PARENT_SCOPE)
endfunction()

# What `make test` leaves to `make test-all`: whole tests get the label "all" here, parts of programs leave themselves out.
set(tiers ${CMAKE_SOURCE_DIR}/tests/tiers)
set(MUSTER_LEFT_TO_ALL "")
if(EXISTS ${tiers}) # an sdist has no tests
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tiers})
  file(STRINGS ${tiers} lines REGEX "^[^ #]+ *(#.*)?$")
  foreach(line IN LISTS lines)
    string(REGEX MATCH "^[^ #]+" name "${line}")
    list(APPEND MUSTER_LEFT_TO_ALL ${name})
  endforeach()
endif()
find_program(MUSTER_NICE nice)
set(MUSTER_TEST_SECONDS_MAX 1200) # for hangs: with a sanitizer, on a busy machine, a test may need thirty times what it needs alone

# muster_test(name COMMAND command ... LABELS label ... [KIND kind] [ENVIRONMENT NAME=value ...]): one test
# of ctest; exit status 77 is a skip. KIND says what it does with the processors (tools/run-tests):
#   COMPUTES  all the time, and nothing in it hurries: it gets what the others leave, as many of these at a time as processors
#   WAITS     for most of the time
#   ALONE     measures time, or needs the whole machine
function(muster_test name)
  cmake_parse_arguments(ARG "" "KIND" "COMMAND;LABELS;ENVIRONMENT" ${ARGN})
  if("${ARG_KIND}" STREQUAL COMPUTES AND MUSTER_NICE AND NOT CMAKE_CROSSCOMPILING) # ctest puts an emulator before names of targets alone
    list(POP_FRONT ARG_COMMAND program)
    if(TARGET ${program})
      set(program $<TARGET_FILE:${program}>)
    endif()
    list(PREPEND ARG_COMMAND ${MUSTER_NICE} -n 5 ${program})
  endif()
  add_test(NAME ${name} COMMAND ${ARG_COMMAND})
  if(name IN_LIST MUSTER_LEFT_TO_ALL)
    list(APPEND ARG_LABELS all)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${MUSTER_TEST_SECONDS_MAX} SKIP_RETURN_CODE 77 PROCESSORS 2
    ENVIRONMENT "MUSTER_BINARY=${CMAKE_BINARY_DIR}/muster;MUSTER_BENCH_BIN=${CMAKE_BINARY_DIR}/bench;${ARG_ENVIRONMENT}")
  if("${ARG_KIND}" STREQUAL COMPUTES)
    set_tests_properties(${name} PROPERTIES PROCESSORS 1 RESOURCE_GROUPS processors:1)
  elseif("${ARG_KIND}" STREQUAL WAITS)
    set_tests_properties(${name} PROPERTIES PROCESSORS 1)
  elseif("${ARG_KIND}" STREQUAL ALONE)
    set_tests_properties(${name} PROPERTIES RUN_SERIAL TRUE)
  elseif(ARG_KIND)
    message(FATAL_ERROR "${name}: ${ARG_KIND} is no kind of test")
  endif()
endfunction()

# Stops where a test under src belongs to no program: it would pass for ever without being run.
function(muster_require_tests_built)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/src/*_test.c)
  foreach(test IN LISTS tests)
    get_filename_component(name ${test} NAME_WE)
    if(CMOCKA_FOUND AND NOT TARGET ${name})
      message(FATAL_ERROR "${test} is built by no CMakeLists.txt: add muster_unit_test() for it")
    endif()
  endforeach()
endfunction()

# muster_unit_test(source.c DEPS lib ... [SOURCES extra.c ...] [LABELS label ...] [KIND kind] [OPTIMIZED]): one
# cmocka program, named after its file, run by ctest with the label "unit" and those given. OPTIMIZED: much of its time is the test's own. Left out, loudly, where cmocka is absent.
function(muster_unit_test source)
  if(MUSTER_PACKAGE) # has no tests; an sdist has not even their sources
    return()
  endif()
  cmake_parse_arguments(ARG "OPTIMIZED" "KIND" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT CMOCKA_FOUND)
    message(WARNING "cmocka not found: ${source} is not built")
    return()
  endif()
  get_filename_component(name ${source} NAME_WE)
  if(TARGET ${name}) # two modules have a test of this name: the second is named after its folder, too
    get_filename_component(folder ${CMAKE_CURRENT_SOURCE_DIR} NAME)
    set(name ${folder}_${name})
  endif()
  set(objects "")
  foreach(shared IN LISTS ARG_SOURCES)
    muster_shared_object(object ${shared} ${ARG_DEPS} PkgConfig::CMOCKA muster_test_options)
    list(APPEND objects ${object})
  endforeach()
  foreach(shared except parts) # leave out what a list names
    muster_shared_object(object ${CMAKE_SOURCE_DIR}/src/base/testing/${shared}_test_support.c ${ARG_DEPS} PkgConfig::CMOCKA
                         muster_test_options)
    list(APPEND objects ${object})
  endforeach()
  add_executable(${name} ${source} ${objects})
  set(options muster_plain_test_options)
  if(ARG_OPTIMIZED OR "${ARG_KIND}" STREQUAL COMPUTES)
    set(options muster_test_options)
  endif()
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} PkgConfig::CMOCKA ${options})
  target_link_options(${name} PRIVATE -Wl,--wrap=_cmocka_run_group_tests)
  if("${ARG_SOURCES}" MATCHES "starter_test_support") # has ranks: tests/engines/run runs it with other engines
    set_property(GLOBAL APPEND PROPERTY MUSTER_TESTS_WITH_RANKS ${name})
  endif()
  if(name IN_LIST MUSTER_LEFT_OUT)
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL TRUE)
    return()
  endif()
  muster_test(${name} COMMAND ${name} LABELS unit ${ARG_LABELS} KIND ${ARG_KIND})
endfunction()
