# libfirstdiff (everything but the program), its headers, pkg-config and CMake package files.
get_property(objects GLOBAL PROPERTY FD_OBJECTS)
add_library(firstdiff ${objects})
set_target_properties(firstdiff PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINKER_LANGUAGE C)
target_link_libraries(firstdiff PRIVATE PkgConfig::PCRE2 PkgConfig::XXHASH PkgConfig::JANSSON PkgConfig::ZLIB OpenMP::OpenMP_C
  Threads::Threads ${HDF5_C_LIBRARIES} m)
target_include_directories(firstdiff INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/firstdiff>)

install(TARGETS firstdiff EXPORT firstdiffTargets)
install(TARGETS firstdiff_program)
foreach(part base numerics model dumpers compare faults reference_cpu emulate)
  install(DIRECTORY ${part} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/firstdiff FILES_MATCHING PATTERN "*.h" PATTERN "*.def")
endforeach()

# The library is static unless BUILD_SHARED_LIBS, so its own needs are named for whoever links it.
list(JOIN HDF5_C_LIBRARIES " " FD_PC_LIBS)
string(APPEND FD_PC_LIBS " ${OpenMP_C_FLAGS} -pthread -lm")
if(FD_CUDA)
  target_link_libraries(firstdiff PRIVATE CUDA::cudart_static stdc++)
  string(APPEND FD_PC_LIBS " -L${CUDAToolkit_LIBRARY_DIR} -lcudart_static -lrt -ldl -lstdc++")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/firstdiff.pc.in firstdiff.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/firstdiff.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
include(CMakePackageConfigHelpers)
write_basic_package_version_file(firstdiffConfigVersion.cmake COMPATIBILITY SameMinorVersion)
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/firstdiffConfig.cmake.in firstdiffConfig.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firstdiff)
install(FILES ${PROJECT_BINARY_DIR}/firstdiffConfig.cmake ${PROJECT_BINARY_DIR}/firstdiffConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firstdiff)
install(EXPORT firstdiffTargets NAMESPACE firstdiff:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firstdiff)
