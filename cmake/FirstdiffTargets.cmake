# fd_add_folder(NAME SOURCES … LINK …): the static library fd_NAME of one folder, linking only the folders that it may
# include.
function(fd_add_folder name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(fd_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(fd_${name} PUBLIC fd_flags ${ARG_LINK})
  # libfirstdiff is made of every folder's objects, those compiled elsewhere and given as sources included.
  list(FILTER ARG_SOURCES INCLUDE REGEX "TARGET_OBJECTS")
  set_property(GLOBAL APPEND PROPERTY FD_OBJECTS $<TARGET_OBJECTS:fd_${name}> ${ARG_SOURCES})
endfunction()

# fd_add_test_library(NAME SOURCES … LINK …): what several tests share, compiled once.
function(fd_add_test_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC fd_flags ${ARG_LINK} PkgConfig::CRITERION)
  set_target_properties(${name} PROPERTIES FD_IS_TEST ON)
  target_compile_definitions(${name} PRIVATE
    FD_SOURCE_DIR="${PROJECT_SOURCE_DIR}" FD_BINARY_DIR="${PROJECT_BINARY_DIR}")
endfunction()

# fd_add_test(NAME SOURCES … LINK … LABEL …): a Criterion program, one CTest entry, run by `ctest -L LABEL`.
# SLOW_UNDER_SANITIZERS: it takes minutes there. Sanitized builds leave it out of `all`, and CI skips the label.
function(fd_add_test name)
  cmake_parse_arguments(ARG "SLOW_UNDER_SANITIZERS" "LABEL;TIMEOUT" "SOURCES;LINK;ARGS" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE fd_flags ${ARG_LINK} PkgConfig::CRITERION)
  set_target_properties(${name} PROPERTIES FD_IS_TEST ON)
  target_compile_definitions(${name} PRIVATE
    FD_SOURCE_DIR="${PROJECT_SOURCE_DIR}" FD_BINARY_DIR="${PROJECT_BINARY_DIR}")
  add_test(NAME ${name} COMMAND ${name} --jobs 1 ${ARG_ARGS})
  if(ARG_SLOW_UNDER_SANITIZERS)
    list(APPEND ARG_LABEL slow_under_sanitizers)
    if(FD_SANITIZE)
      set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABEL}" TIMEOUT ${ARG_TIMEOUT}
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} # what the program sets itself, and cli/cli.h says why:
    ENVIRONMENT "GOMP_SPINCOUNT=1000;MALLOC_MMAP_MAX_=0;MALLOC_TRIM_THRESHOLD_=-1;MALLOC_ARENA_MAX=1")
endfunction()
