# For the Python package: a wheel is to need nothing but the C library. The program gets static libuv and jansson where there are such.
# libmuster.so cannot (static libraries are compiled for programs), so setup.py puts libjansson.so beside it.
set(MUSTER_LIBRARY_JANSSON ${JANSSON_LINK_LIBRARIES})

function(muster_link_static target)
  cmake_parse_arguments(ARG "" "" "NAMES;DEPS" ${ARGN})
  list(TRANSFORM ARG_NAMES PREPEND lib OUTPUT_VARIABLE names)
  list(TRANSFORM names APPEND .a)
  find_library(${target}_ARCHIVE NAMES ${names} HINTS ${LIBUV_LIBDIR} ${JANSSON_LIBDIR})
  if(${target}_ARCHIVE)
    set_target_properties(PkgConfig::${target} PROPERTIES INTERFACE_LINK_LIBRARIES "${${target}_ARCHIVE};${ARG_DEPS}")
  else()
    message(STATUS "no static library for ${target}: the package will need a shared one")
  endif()
endfunction()

muster_link_static(LIBUV NAMES uv_a uv DEPS Threads::Threads ${CMAKE_DL_LIBS} rt)
muster_link_static(JANSSON NAMES jansson)
