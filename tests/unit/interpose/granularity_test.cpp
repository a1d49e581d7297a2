#include "interpose/granularity.hpp"

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace hmshim::interpose {
namespace {

using Variables = std::vector<std::pair<std::string, std::string>>;

GranularityChoice choose(Granularity wanted, std::initializer_list<const char*> environment) {
  std::vector<const char*> entries(environment);
  entries.push_back(nullptr);
  return choose_granularity(wanted, entries.data());
}

TEST(Granularity, by_itself_tells_old_and_new_frameworks_to_allocate_tensor_by_tensor) {
  const GranularityChoice choice = choose(Granularity::Auto, {"PATH=/bin"});
  EXPECT_EQ(choice.granularity, Granularity::Tensor);
  EXPECT_EQ(choice.variables, (Variables{{"PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync"},
                                         {"PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"}}));
}

TEST(Granularity, merges_with_the_keys_that_the_user_has_set_and_hides_none) {
  EXPECT_EQ(choose(Granularity::Auto, {"PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:128"}).variables,
            (Variables{{"PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:128,backend:cudaMallocAsync"}}));
  EXPECT_EQ(choose(Granularity::Tensor, {"PYTORCH_ALLOC_CONF=a:1", "PYTORCH_CUDA_ALLOC_CONF=b:2"}).variables,
            (Variables{{"PYTORCH_ALLOC_CONF", "a:1,backend:cudaMallocAsync"},
                       {"PYTORCH_CUDA_ALLOC_CONF", "b:2,backend:cudaMallocAsync"}}));
}

TEST(Granularity, leaves_a_backend_of_the_users_own_and_says_so) {
  for (const Granularity wanted : {Granularity::Auto, Granularity::Tensor}) {
    const GranularityChoice native = choose(wanted, {"PYTORCH_CUDA_ALLOC_CONF=x:1, backend : native"});
    EXPECT_EQ(native.granularity, Granularity::Segment);
    EXPECT_EQ(native.why, "PYTORCH_CUDA_ALLOC_CONF has backend:native");
    EXPECT_TRUE(native.variables.empty());
    const GranularityChoice async = choose(wanted, {"PYTORCH_ALLOC_CONF=backend:cudaMallocAsync"});
    EXPECT_EQ(async.granularity, Granularity::Tensor);
    EXPECT_TRUE(async.variables.empty());
  }
}

TEST(Granularity, yields_to_expandable_segments_unless_tensors_are_asked_for) {
  const char* user = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";
  EXPECT_EQ(choose(Granularity::Auto, {user}).granularity, Granularity::Segment);
  EXPECT_EQ(choose(Granularity::Tensor, {user}).granularity, Granularity::Tensor);
  EXPECT_EQ(choose(Granularity::Auto, {"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False"}).granularity,
            Granularity::Tensor);
}

TEST(Granularity, of_segments_leaves_the_framework_alone) {
  const GranularityChoice choice = choose(Granularity::Segment, {});
  EXPECT_EQ(choice.granularity, Granularity::Segment);
  EXPECT_TRUE(choice.variables.empty());
}

}  // namespace
}  // namespace hmshim::interpose
