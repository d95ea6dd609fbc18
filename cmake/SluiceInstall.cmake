# What `cmake --install` puts where: the programs, the library, its headers (include/sluice alone)
# and the package that find_package(sluice) reads. tests/package builds a project against it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(sluice_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/sluice)

install(TARGETS sluice_library EXPORT sluice_targets
  INCLUDES DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS sluice_cli sluice_eval)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/sluice
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN *.h)

install(EXPORT sluice_targets NAMESPACE sluice:: FILE sluice-targets.cmake
  DESTINATION ${sluice_package_dir})
configure_package_config_file(cmake/sluice-config.cmake.in sluice-config.cmake
  INSTALL_DESTINATION ${sluice_package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(sluice-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES
  ${CMAKE_CURRENT_BINARY_DIR}/sluice-config.cmake
  ${CMAKE_CURRENT_BINARY_DIR}/sluice-config-version.cmake
  cmake/Findutf8proc.cmake
  cmake/Findxxhash.cmake
  DESTINATION ${sluice_package_dir})
