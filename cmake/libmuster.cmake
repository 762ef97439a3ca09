# libmuster: what worker programs link (include/muster/), from the modules that need libc alone; shared and static.
set(worker_modules muster_train muster_comm muster_worker muster_store muster_net muster_base)
set(objects "")
foreach(module IN LISTS worker_modules)
  list(APPEND objects $<TARGET_OBJECTS:${module}>)
endforeach()

if(NOT MUSTER_PACKAGE AND NOT MUSTER_BUNDLED)
  set(MUSTER_LIBRARY_JANSSON PkgConfig::JANSSON)
endif()
foreach(kind SHARED STATIC)
  string(TOLOWER libmuster_${kind} target)
  add_library(${target} ${kind} ${objects})
  target_link_libraries(${target} PRIVATE muster_options m Threads::Threads ${CMAKE_DL_LIBS} ${MUSTER_LIBRARY_JANSSON})
  set_target_properties(${target} PROPERTIES OUTPUT_NAME muster LINKER_LANGUAGE C)
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
endforeach()
if(MUSTER_PACKAGE)
  # One file in a wheel, which has no links: what the extension module needs is found under that name.
  set_target_properties(libmuster_shared PROPERTIES BUILD_RPATH "$ORIGIN")
else()
  # Before 1.0 every minor release may change the interface.
  set_target_properties(libmuster_shared PROPERTIES
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
endif()

# Paths relative to the file itself, so that a copied or staged tree works where it lies.
file(RELATIVE_PATH pc_to_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/muster.pc.in ${CMAKE_BINARY_DIR}/muster.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/muster.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
