# What `make install` puts where, beside the program: man pages, pages, shell completions, headers, licence.
file(GLOB man_pages ${CMAKE_SOURCE_DIR}/docs/man/*.1)
install(FILES ${man_pages} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/include/muster DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
# The pages that headers and --help refer to as docs/NAME.md.
install(DIRECTORY ${CMAKE_SOURCE_DIR}/docs DESTINATION ${CMAKE_INSTALL_DOCDIR} FILES_MATCHING PATTERN "*.md"
  PATTERN man EXCLUDE PATTERN adr EXCLUDE)

# The program prints its own completions.
function(muster_completion shell file destination)
  set(output ${CMAKE_BINARY_DIR}/completion/${file})
  add_custom_command(OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} -E make_directory ${CMAKE_BINARY_DIR}/completion
    COMMAND $<TARGET_FILE:muster> completion ${shell} > ${output}
    DEPENDS muster VERBATIM)
  add_custom_target(completion_${shell} ALL DEPENDS ${output})
  install(FILES ${output} DESTINATION ${CMAKE_INSTALL_DATADIR}/${destination})
endfunction()

# All that `make install` needs, and nothing else.
add_custom_target(installed DEPENDS libmuster_shared libmuster_static)
if(TARGET muster)
  muster_completion(bash muster bash-completion/completions)
  # bash loads completions by the command's name; zsh's file names both itself.
  install(FILES ${CMAKE_BINARY_DIR}/completion/muster DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions
    RENAME torchrun)
  muster_completion(zsh _muster zsh/site-functions)
  add_dependencies(installed muster completion_bash completion_zsh)
endif()
