# Every target of ours links fd_flags. -ffp-contract=off is part of the numerics contract: a fused multiply-add is always
# written, never inferred.
add_library(fd_flags INTERFACE)
target_include_directories(fd_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(fd_flags INTERFACE _GNU_SOURCE FD_VERSION="${PROJECT_VERSION}")
target_compile_options(fd_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion;-Werror;-ffp-contract=off;-fno-math-errno>)
if(FD_SANITIZE)
  target_compile_options(fd_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-fsanitize=${FD_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
  target_link_options(fd_flags INTERFACE -fsanitize=${FD_SANITIZE})
endif()
