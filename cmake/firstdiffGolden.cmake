# firstdiff_add_golden_test(NAME MODEL model.gguf GOLDEN golden.h5 [ARGS …]): a test that a model still computes what its golden says,
# in every bit; ARGS as of `firstdiff golden check`, --backend gpu for one.
# firstdiff_add_check_test(NAME MODEL model.gguf COMMAND engine… [DUMP PATH] [ARGS …]): a test that an engine computes what its model says.
# The command leaves a trace in $FIRSTDIFF_TRACE, or a dump in PATH; ARGS as of `firstdiff check`, --candidate f16 for one.
find_program(FIRSTDIFF_PROGRAM firstdiff HINTS ${PACKAGE_PREFIX_DIR}/bin)

function(firstdiff_add_golden_test name)
  cmake_parse_arguments(ARG "" "MODEL;GOLDEN" "ARGS" ${ARGN})
  add_test(NAME ${name} COMMAND ${FIRSTDIFF_PROGRAM} golden check ${ARG_MODEL} ${ARG_GOLDEN} ${ARG_ARGS})
endfunction()

function(firstdiff_add_check_test name)
  cmake_parse_arguments(ARG "" "MODEL;DUMP" "COMMAND;ARGS" ${ARGN})
  set(dump ${ARG_DUMP})
  if(NOT dump)
    set(dump ${CMAKE_CURRENT_BINARY_DIR}/${name}.h5)
  endif()
  add_test(NAME ${name}_run COMMAND ${ARG_COMMAND})
  add_test(NAME ${name} COMMAND ${FIRSTDIFF_PROGRAM} check ${ARG_MODEL} ${dump} ${ARG_ARGS})
  set_tests_properties(${name}_run PROPERTIES ENVIRONMENT FIRSTDIFF_TRACE=${dump} FIXTURES_SETUP ${name})
  set_tests_properties(${name} PROPERTIES FIXTURES_REQUIRED ${name})
endfunction()
