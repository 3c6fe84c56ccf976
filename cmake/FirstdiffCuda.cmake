# The CUDA language with the contract's flags; included when FD_CUDA is ON.
#
# FD_CUDA_ARCHITECTURES: "90a" gives sm_90a machine code and no PTX; a list ("80;90a") several; "native" the machine's
# own.
set(CMAKE_CUDA_ARCHITECTURES OFF) # the -gencode flags below say it, once
set(CMAKE_CUDA_STANDARD 17)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
enable_language(CUDA)
find_package(CUDAToolkit REQUIRED)

set(FD_CUDA_CODE "")
foreach(architecture IN LISTS FD_CUDA_ARCHITECTURES)
  if(architecture STREQUAL "native")
    list(APPEND FD_CUDA_CODE -arch=native)
  else()
    list(APPEND FD_CUDA_CODE -gencode=arch=compute_${architecture},code=sm_${architecture})
  endif()
endforeach()

# A fused multiply-add is always written, never inferred; subnormals are kept; division and square root are IEEE's.
set(FD_CUDA_FLAGS
  ${FD_CUDA_CODE} -fmad=false -ftz=false -prec-div=true -prec-sqrt=true
  -Werror=all-warnings -Xcompiler=-Wall,-Wextra,-Werror,-ffp-contract=off)
target_compile_options(fd_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${FD_CUDA_FLAGS}>")
