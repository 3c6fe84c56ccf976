# FD_CUDA_DEFAULT: ON when a CUDA compiler is found. Included after project() and before the option FD_CUDA, which the
# user may set either way.
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  set(FD_CUDA_DEFAULT ON)
else()
  set(FD_CUDA_DEFAULT OFF)
endif()
