#include "interpose/callers.hpp"

#include <gtest/gtest.h>

#include <cstdlib>

namespace hmshim::interpose {
namespace {

const void* in_libc() { return reinterpret_cast<const void*>(&std::atoi); }
const void* in_the_program() { return reinterpret_cast<const void*>(&in_libc); }

TEST(Callers, an_address_leads_to_its_library) {
  EXPECT_EQ(library_of(in_libc()), "libc.so.6");
  EXPECT_EQ(library_of(in_the_program()), "");
  EXPECT_EQ(library_of(nullptr), "");
}

TEST(Callers, a_name_is_meant_with_and_without_its_version) {
  EXPECT_TRUE(is_named("libnccl.so.2.27.3", "libnccl"));
  EXPECT_TRUE(is_named("libnccl.so.2", "libnccl.so.2"));
  EXPECT_FALSE(is_named("libnccl-net.so", "libnccl"));
  EXPECT_FALSE(is_named("libnccl.so.20", "libnccl.so.2"));
  EXPECT_FALSE(is_named("libncc.so", "libnccl"));
  EXPECT_FALSE(is_named("", "libnccl"));
}

TEST(Callers, an_answer_is_the_same_the_second_time) {
  Callers callers({"libc"});
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(callers.is_excluded(in_libc()));
    EXPECT_FALSE(callers.is_excluded(in_the_program()));
  }
}

TEST(Callers, are_counted_by_library) {
  Callers callers({});
  callers.note_excluded(in_libc(), 10);
  callers.note_excluded(in_libc(), 5);
  EXPECT_TRUE(callers.note_refused(in_libc(), 7));
  EXPECT_FALSE(callers.note_refused(in_libc(), 7));
  EXPECT_TRUE(callers.note_refused(in_the_program(), 1));
  const auto tallies = callers.tallies();
  ASSERT_EQ(tallies.size(), 2U);
  EXPECT_EQ(tallies[0].name, "libc.so.6");
  EXPECT_EQ(tallies[0].excluded_allocations, 2U);
  EXPECT_EQ(tallies[0].excluded_bytes, 15U);
  EXPECT_EQ(tallies[0].refused_handles, 2U);
  EXPECT_EQ(tallies[0].refused_bytes, 14U);
}

}  // namespace
}  // namespace hmshim::interpose
