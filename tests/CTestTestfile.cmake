# Every test of the project, one process each. Run by `make test`, which names the build folder and the source tree by absolute paths.
# A TEST( in a source file is a test here: none can be forgotten.
set(BUILD "$ENV{HMSHIM_TEST_BUILD}")
set(SOURCE "$ENV{HMSHIM_TEST_SOURCE}")

# Seconds; the long form of the campaigns (make campaign) takes as long as it takes.
set(LIMIT 300)
if(DEFINED ENV{HMSHIM_TEST_EVERY_FAULT})
  set(LIMIT 36000)
endif()

# Declares the tests of one GoogleTest binary: those of the sources that match the glob.
function(declare_tests label binary glob)
  file(GLOB sources "${SOURCE}/${glob}")
  foreach(source ${sources})
    file(STRINGS "${source}" lines REGEX "^TEST(_F|_P)?\\(")
    foreach(line ${lines})
      string(REGEX REPLACE "^TEST(_F|_P)?\\(([A-Za-z0-9_]+), *([A-Za-z0-9_]+)\\).*" "\\2;\\3" parts "${line}")
      list(GET parts 0 suite)
      list(GET parts 1 name)
      add_test("${label}.${suite}.${name}" "${binary}" "--gtest_filter=${suite}.${name}:*/${suite}.${name}/*")
      set_tests_properties("${label}.${suite}.${name}" PROPERTIES LABELS "${label}" TIMEOUT ${LIMIT} WORKING_DIRECTORY "${SOURCE}"
        ENVIRONMENT "GTEST_FAIL_IF_NO_TEST_SELECTED=1")
    endforeach()
  endforeach()
endfunction()

foreach(group interpose policy uvm simgpu)
  declare_tests(unit "${BUILD}/tests/unit_${group}" "tests/unit/${group}/*_test.cpp")
endforeach()
declare_tests(preload "${BUILD}/tests/preload" "tests/preload/*_test.cpp")

# Replays whose exact results are kept.
foreach(trace dlrm graphsage)
  add_test("golden.${trace}" "${SOURCE}/scripts/golden" small --quiet --only "^${trace} " --jobs 1 --build "${BUILD}")
  set_tests_properties("golden.${trace}" PROPERTIES LABELS golden TIMEOUT 300)
endforeach()

# Waits for a card: the probe says 77 where there is none.
add_test(gpu.probe "${BUILD}/gpu/probe")
set_tests_properties(gpu.probe PROPERTIES LABELS gpu SKIP_RETURN_CODE 77 TIMEOUT 120 WORKING_DIRECTORY "${SOURCE}")
