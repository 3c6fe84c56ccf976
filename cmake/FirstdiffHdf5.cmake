# FD_HDF5_LIBRARIES: what links HDF5. Programs take its archive where one is beside the shared library, and of the other
# libraries what they use: Debian's shared HDF5 reads files in the cloud too and so loads libcurl and thirty libraries more,
# 8 of the 10 ms that `firstdiff --version` took. Our own shared libraries take the shared one: archives are rarely fit for that.
# So do programs with the property FD_SHARED_HDF5.
set(FD_HDF5_LIBRARIES ${HDF5_C_LIBRARIES})
set(fd_hdf5_archived ${HDF5_C_LIBRARIES})
list(TRANSFORM fd_hdf5_archived REPLACE "/lib(hdf5|hdf5_serial)\\.so$" "/lib\\1.a")
list(FILTER fd_hdf5_archived EXCLUDE REGEX "/lib(curl|crypto)\\.")
if(NOT FD_STATIC AND NOT fd_hdf5_archived STREQUAL HDF5_C_LIBRARIES)
  include(CMakePushCheckState)
  include(CheckCSourceCompiles)
  cmake_push_check_state(RESET)
  set(CMAKE_REQUIRED_INCLUDES ${HDF5_C_INCLUDE_DIRS})
  set(CMAKE_REQUIRED_LIBRARIES ${fd_hdf5_archived})
  check_c_source_compiles("#include <hdf5.h>\nint main(void) { return H5open() + (int)H5Fopen(\"\", 0, 0); }" FD_HDF5_ARCHIVE_LINKS)
  cmake_pop_check_state()
  if(FD_HDF5_ARCHIVE_LINKS)
    set(program $<AND:$<STREQUAL:$<TARGET_PROPERTY:TYPE>,EXECUTABLE>,$<NOT:$<BOOL:$<TARGET_PROPERTY:FD_SHARED_HDF5>>>>)
    set(FD_HDF5_LIBRARIES "$<${program}:${fd_hdf5_archived}>" "$<$<NOT:${program}>:${HDF5_C_LIBRARIES}>")
  endif()
endif()
