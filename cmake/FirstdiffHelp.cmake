# cmake -DPROGRAM=… -DOUT=DIR -P FirstdiffHelp.cmake: the manual pages and completion scripts, as the program prints them.
function(print_to file)
  execute_process(COMMAND ${PROGRAM} ${ARGN} OUTPUT_FILE ${OUT}/${file} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
file(MAKE_DIRECTORY ${OUT}/man1)
execute_process(COMMAND ${PROGRAM} man --list OUTPUT_VARIABLE commands OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "\n" ";" commands "${commands}")
print_to(man1/firstdiff.1 man)
foreach(command ${commands})
  print_to(man1/firstdiff-${command}.1 man ${command})
endforeach()
print_to(firstdiff completion bash) # bash-completion looks for the program's own name
print_to(_firstdiff completion zsh)
print_to(firstdiff.fish completion fish)
