# Compiler settings and the two functions that every module's list uses.
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
  if(MUSTER_SANITIZE MATCHES "undefined|thread" AND NOT MUSTER_FUZZERS) # their checks take longer to compile with -O2
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

# muster_unit_test(source.c DEPS lib ... [SOURCES extra.c ...] [TIMEOUT seconds]): one cmocka program, named after
# its file, run by ctest with the label "unit". Left out, loudly, where cmocka is absent.
function(muster_unit_test source)
  if(MUSTER_PACKAGE) # has no tests; an sdist has not even their sources
    return()
  endif()
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS" ${ARGN})
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
    muster_shared_object(object ${shared} ${ARG_DEPS} PkgConfig::CMOCKA)
    list(APPEND objects ${object})
  endforeach()
  if("${ARG_SOURCES}" MATCHES "starter_test_support") # has ranks: tests/engines/run leaves some of its tests out
    muster_shared_object(object ${CMAKE_SOURCE_DIR}/src/comm/group/except_test_support.c ${ARG_DEPS} PkgConfig::CMOCKA)
    list(APPEND objects ${object})
  endif()
  add_executable(${name} ${source} ${objects})
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} PkgConfig::CMOCKA)
  add_test(NAME ${name} COMMAND ${name})
  if("${ARG_SOURCES}" MATCHES "starter_test_support")
    target_link_options(${name} PRIVATE -Wl,--wrap=_cmocka_run_group_tests)
    set_property(GLOBAL APPEND PROPERTY MUSTER_TESTS_WITH_RANKS ${name})
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300) # for hangs; a busy machine of two cores needs ten times what a quiet one does
  endif()
  set_tests_properties(${name} PROPERTIES LABELS unit TIMEOUT ${ARG_TIMEOUT} SKIP_RETURN_CODE 77 PROCESSORS 2)
endfunction()
