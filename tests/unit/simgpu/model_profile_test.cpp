#include <filesystem>

#include "tests/unit/simgpu/model_gpu.hpp"

namespace hmshim::simgpu {
namespace {

std::string valid_text() {
  return support::read_file(support::source_dir() / "tests/simgpu/profiles/a100-40g-pcie4.profile");
}

/// What load_profile says about a text; empty when it takes it. The file's folder is cut off.
std::string complaint(const std::string& text) {
  const support::TempDir folder;
  support::write_file(folder.file("x.profile"), text);
  try {
    static_cast<void>(load_profile(folder.file("x.profile")));
  } catch (const ProfileError& error) {
    const std::string message = error.what();
    return message.substr(message.find("x.profile"));
  }
  return "";
}

TEST(ModelProfile, every_shipped_profile_loads) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(support::source_dir() / "tests/simgpu/profiles")) {
    if (entry.path().extension() != ".profile") continue;
    ++count;
    EXPECT_NO_THROW(static_cast<void>(load_profile(entry.path().string()))) << entry.path();
  }
  EXPECT_GE(count, 6);
}

TEST(ModelProfile, values_are_read_in_their_units) {
  const Profile profile = shipped_profile("a100-40g-pcie4");
  EXPECT_EQ(profile.capacity_bytes, 40ULL << 30);
  EXPECT_EQ(profile.link_h2d_gbps, 24);
  EXPECT_EQ(profile.link_curve.front().bytes, 4096);
  EXPECT_EQ(profile.eviction_duplex, Duplex::kSerialised);
}

TEST(ModelProfile, a_missing_file_is_named) {
  EXPECT_THROW(static_cast<void>(load_profile("/nonexistent/x.profile")), ProfileError);
}

TEST(ModelProfile, junk_is_refused_with_file_and_line) {
  EXPECT_EQ(complaint("nonsense"), "x.profile:1: expected 'key = value  # source'");
  EXPECT_EQ(complaint("\ncapcity = 1GiB  # product"), "x.profile:2: unknown key 'capcity'");
  EXPECT_EQ(complaint("sm = 1"), "x.profile:1: unknown key 'sm'");
  EXPECT_EQ(complaint("capacity = 40 gigs  # product"),
            "x.profile:1: '40 gigs' is not a positive size such as 40GiB, 64KiB or 4096");
  EXPECT_EQ(complaint("hbm_gbps = 0  # product"), "x.profile:1: '0' is not a rate in GB/s above 0");
  EXPECT_EQ(complaint("hbm_gbps = nan  # product"), "x.profile:1: 'nan' is not a rate in GB/s above 0");
  EXPECT_EQ(complaint("call_host_ns = 0  # swept"),
            "x.profile:1: '0' is not a whole number of nanoseconds, at least 1");
  EXPECT_EQ(complaint("planned_duplex = half  # swept"), "x.profile:1: 'half' is not 'full' or 'serialised'");
}

TEST(ModelProfile, a_value_without_a_source_is_refused) {
  EXPECT_EQ(complaint("multiprocessors = 108"),
            "x.profile:1: 'multiprocessors' has no source: end the line with '# <where it is from>' or '# swept'");
}

TEST(ModelProfile, a_curve_must_rise_in_size_and_stay_within_one) {
  EXPECT_NE(complaint("link_curve = 64KiB:0.9 4KiB:0.5  # swept"), "");
  EXPECT_NE(complaint("link_curve = 4KiB:1.5  # swept"), "");
  EXPECT_NE(complaint("link_curve = 4KiB  # swept"), "");
}

TEST(ModelProfile, a_repeated_or_missing_key_is_refused) {
  EXPECT_EQ(complaint(valid_text()), "");
  EXPECT_NE(complaint(valid_text() + "queue_depth = 1  # swept\n").find("'queue_depth' is given twice"),
            std::string::npos);
  std::string text = valid_text();
  text.erase(text.find("queue_depth"));
  EXPECT_EQ(complaint(text), "x.profile: 'queue_depth' is missing");
}

}  // namespace
}  // namespace hmshim::simgpu
