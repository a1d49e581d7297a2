#include "uvm/result.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <set>

namespace hmshim::uvm {
namespace {

TEST(Result, holds_a_move_only_value) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(7));
  ASSERT_TRUE(result);
  EXPECT_EQ(**result, 7);
  EXPECT_EQ(result.code(), CUDA_SUCCESS);
}

TEST(Result, holds_the_drivers_code_and_a_reason) {
  const Result<int> result(Error{CUDA_ERROR_OUT_OF_MEMORY, Reason::HostLimit});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.code(), CUDA_ERROR_OUT_OF_MEMORY);
  EXPECT_EQ(result.error().reason, Reason::HostLimit);
}

TEST(Result, every_reason_has_a_word_of_its_own) {
  std::set<std::string_view> words;
  for (int reason = 0; reason <= static_cast<int>(Reason::NotOurs); ++reason)
    words.insert(to_string(static_cast<Reason>(reason)));
  EXPECT_EQ(words.size(), static_cast<std::size_t>(Reason::NotOurs) + 1);
  EXPECT_FALSE(words.contains("unknown"));
}

}  // namespace
}  // namespace hmshim::uvm
