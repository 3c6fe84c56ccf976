# Every target of ours links fd_flags. -ffp-contract=off is part of the numerics contract: a fused multiply-add is always
# written, never inferred.
add_library(fd_flags INTERFACE)
target_include_directories(fd_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(fd_flags INTERFACE _GNU_SOURCE FD_VERSION="${PROJECT_VERSION}")
# Fields that a table leaves out are zero, on purpose.
target_compile_options(fd_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C>:-Wall;-Wextra;-Wno-missing-field-initializers;-Werror;-ffp-contract=off;-fno-math-errno>
  # clang says where `omp simd` did not become vectors; under a sanitizer it never does
  $<$<AND:$<COMPILE_LANGUAGE:C>,$<C_COMPILER_ID:Clang>>:-Wno-pass-failed>)
# Criterion's own macros convert signs and shadow, so tests go without these two.
set(fd_is_test $<BOOL:$<TARGET_PROPERTY:FD_IS_TEST>>)
target_compile_options(fd_flags INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:C>,$<NOT:${fd_is_test}>>:-Wshadow;-Wconversion;-Wno-sign-conversion>)
# dumpers/hdf5/h5.h
if(FD_SANITIZE MATCHES "thread" OR CMAKE_BUILD_TYPE STREQUAL "Debug")
  target_compile_definitions(fd_flags INTERFACE FD_CHECK_HDF5_LOCK)
endif()
if(FD_SANITIZE)
  target_compile_definitions(fd_flags INTERFACE FD_SANITIZED)
  target_compile_options(fd_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-fsanitize=${FD_SANITIZE};-fno-sanitize-recover=all;-fno-omit-frame-pointer>)
  target_link_options(fd_flags INTERFACE -fsanitize=${FD_SANITIZE})
endif()

# Assertions are for our own bugs and stay on in every build: a wrong verdict costs more than a check.
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
