# `cpack -G DEB` in a build folder: a Debian package of what `cmake --install` installs, its dependencies read from the programs.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME firstdiff)
set(CPACK_PACKAGE_VENDOR "the firstdiff maintainers")
set(CPACK_PACKAGE_CONTACT "the firstdiff maintainers <maintainers@users.noreply.github.com>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "first tensor where two runs of a language model diverge")
set(CPACK_DEBIAN_PACKAGE_DESCRIPTION "firstdiff compares what two inference engines compute for one GGUF model, tensor by tensor, tells
 rounding from bugs by replaying every op, and names the bug. It includes the program, a library for
 engines that record traces, and its headers.")
set(CPACK_DEBIAN_PACKAGE_SECTION devel)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
include(CPack)
