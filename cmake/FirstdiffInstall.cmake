# libfirstdiff (everything but the program), its headers, pkg-config and CMake package files.
get_property(objects GLOBAL PROPERTY FD_OBJECTS)
add_library(firstdiff ${objects})
set_target_properties(firstdiff PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0 LINKER_LANGUAGE C)
target_link_libraries(firstdiff PRIVATE PkgConfig::PCRE2 PkgConfig::XXHASH PkgConfig::JANSSON PkgConfig::ZLIB OpenMP::OpenMP_C
  Threads::Threads ${HDF5_C_LIBRARIES} m)
target_include_directories(firstdiff INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/firstdiff>)

install(TARGETS firstdiff EXPORT firstdiffTargets)

# The program, its manual pages and completion. In a wheel (pyproject.toml) it stands next to Python's own scripts.
if(SKBUILD)
  set(fd_bin ${SKBUILD_SCRIPTS_DIR})
  set(fd_share ${SKBUILD_DATA_DIR}/share)
else()
  set(fd_bin ${CMAKE_INSTALL_BINDIR})
  set(fd_share ${CMAKE_INSTALL_DATADIR})
endif()
install(TARGETS firstdiff_program DESTINATION ${fd_bin} COMPONENT program)
if(NOT CMAKE_CROSSCOMPILING)
  set(fd_help ${PROJECT_BINARY_DIR}/help)
  install(DIRECTORY ${fd_help}/man1 DESTINATION ${fd_share}/man COMPONENT program)
  install(FILES ${fd_help}/firstdiff DESTINATION ${fd_share}/bash-completion/completions COMPONENT program)
  install(FILES ${fd_help}/_firstdiff DESTINATION ${fd_share}/zsh/site-functions COMPONENT program)
  install(FILES ${fd_help}/firstdiff.fish DESTINATION ${fd_share}/fish/vendor_completions.d COMPONENT program)
endif()
foreach(part base numerics model exec dumpers compare faults reference_cpu emulate)
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
install(FILES ${PROJECT_BINARY_DIR}/firstdiffConfig.cmake ${PROJECT_BINARY_DIR}/firstdiffConfigVersion.cmake cmake/firstdiffGolden.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firstdiff)
install(EXPORT firstdiffTargets NAMESPACE firstdiff:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firstdiff)

# libfirstdiff_trace, for engines that write traces: one header, no other part of firstdiff. The CMake package gives the
# shared library; pkg-config gives both (--static).
install(TARGETS firstdiff_trace EXPORT firstdiff_traceTargets)
get_property(fd_trace_archive GLOBAL PROPERTY FD_TRACE_ARCHIVE)
install(FILES ${fd_trace_archive} DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES dumpers/client/firstdiff_trace.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
list(JOIN HDF5_C_LIBRARIES " " FD_TRACE_PC_PRIVATE)
configure_file(${PROJECT_SOURCE_DIR}/cmake/firstdiff_trace.pc.in firstdiff_trace.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/firstdiff_trace.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
write_basic_package_version_file(firstdiff_traceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/firstdiff_traceConfigVersion.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firstdiff_trace)
install(EXPORT firstdiff_traceTargets NAMESPACE firstdiff:: FILE firstdiff_traceConfig.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/firstdiff_trace)

include(FirstdiffPackage)
