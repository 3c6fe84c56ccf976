# A digest of the sources that made a GPU trace: numerics/, kernels/ and engine/. The build writes it to fd_sources.h; a
# trace keeps it, so that a GPU trace made by other sources is noticed (tests/golden/digest).
# Also a script: cmake -DSOURCE_DIR=… -DOUTPUT=… -P FirstdiffSources.cmake
set(FD_DIGEST_GLOBS numerics/*.h kernels/*.c kernels/*.cu kernels/*.cuh kernels/*.h kernels/*/*.c kernels/*/*.cu
  kernels/*/*.cuh kernels/*/*.h engine/*.c engine/*.h engine/*.cu)

if(CMAKE_SCRIPT_MODE_FILE)
  list(TRANSFORM FD_DIGEST_GLOBS PREPEND ${SOURCE_DIR}/)
  file(GLOB files LIST_DIRECTORIES false RELATIVE ${SOURCE_DIR} ${FD_DIGEST_GLOBS})
  list(SORT files)
  set(lines "")
  foreach(file IN LISTS files)
    file(SHA256 ${SOURCE_DIR}/${file} hash)
    string(APPEND lines "${hash} ${file}\n")
  endforeach()
  string(SHA256 digest "${lines}")
  string(SUBSTRING ${digest} 0 32 digest)
  if(OUTPUT)
    file(CONFIGURE OUTPUT ${OUTPUT} CONTENT "#define FD_SOURCES_DIGEST \"${digest}\"\n")
  else()
    message(STATUS "${digest}")
  endif()
else()
  add_custom_target(fd_sources_digest
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DOUTPUT=${PROJECT_BINARY_DIR}/generated/fd_sources.h
            -P ${CMAKE_CURRENT_LIST_FILE}
    BYPRODUCTS ${PROJECT_BINARY_DIR}/generated/fd_sources.h)
endif()
