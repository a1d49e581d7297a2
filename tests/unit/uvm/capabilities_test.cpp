#include "uvm/capabilities.hpp"

#include <gtest/gtest.h>

#include "tests/unit/uvm/fake_driver.hpp"
#include "tests/unit/uvm/fake_host.hpp"

namespace hmshim::uvm {
namespace {

DeviceFacts able_device() {
  return {.device = 0,
          .name = "NVIDIA H200",
          .driver_version = 13000,
          .has_managed_memory = true,
          .has_concurrent_managed_access = true,
          .has_prefetch = true,
          .has_prefetch_by_location = true,
          .has_param_info = true,
          .has_discard = true,
          .has_advice = true};
}

TEST(Capabilities, a_discrete_gpu_with_a_current_driver_is_managed) {
  const Capabilities capabilities = judge(able_device());
  EXPECT_TRUE(capabilities.can_manage());
  EXPECT_TRUE(capabilities.can_decode_parameters);
  EXPECT_TRUE(capabilities.can_discard);
  EXPECT_EQ(capabilities.sentence, "device 0 (NVIDIA H200): its memory is managed.");
}

TEST(Capabilities, what_an_older_driver_lacks_is_said_but_no_reason_to_stand_down) {
  DeviceFacts facts = able_device();
  facts.driver_version = 12020;
  facts.has_prefetch_by_location = false;
  facts.has_param_info = false;
  facts.has_discard = false;
  const Capabilities capabilities = judge(facts);
  EXPECT_TRUE(capabilities.can_manage());
  EXPECT_FALSE(capabilities.can_decode_parameters);
  EXPECT_FALSE(capabilities.can_discard);
  EXPECT_NE(capabilities.sentence.find("CUDA 12.4"), std::string::npos);
}

TEST(Capabilities, a_driver_before_12_0_is_too_old_and_both_versions_are_named) {
  DeviceFacts facts = able_device();
  facts.driver_version = 11080;
  EXPECT_EQ(judge(facts).verdict, Verdict::DriverTooOld);
  EXPECT_EQ(judge(facts).sentence,
            "device 0 (NVIDIA H200): not managed: the driver supports CUDA 11.8, at least 12.0 is needed.");
}

TEST(Capabilities, a_driver_that_tells_no_version_is_not_given_one) {
  DeviceFacts facts = able_device();
  facts.driver_version = 0;
  EXPECT_EQ(judge(facts).verdict, Verdict::DriverTooOld);
  EXPECT_EQ(judge(facts).sentence,
            "device 0 (NVIDIA H200): not managed: the driver does not say which CUDA it supports.");
}

TEST(Capabilities, without_any_prefetch_call_nothing_is_managed) {
  DeviceFacts facts = able_device();
  facts.has_prefetch = false;
  EXPECT_EQ(judge(facts).verdict, Verdict::NoPrefetch);
}

TEST(Capabilities, without_managed_memory_nothing_is_managed) {
  DeviceFacts facts = able_device();
  facts.has_managed_memory = false;
  EXPECT_EQ(judge(facts).verdict, Verdict::NoManagedMemory);
}

TEST(Capabilities, a_coherent_system_is_left_alone) {
  DeviceFacts facts = able_device();
  facts.uses_host_page_tables = true;
  EXPECT_EQ(judge(facts).verdict, Verdict::HostCoherent);
  facts.is_integrated = true;
  EXPECT_EQ(judge(facts).verdict, Verdict::Integrated);
}

TEST(Capabilities, a_lack_of_concurrent_access_is_explained_by_where_we_run) {
  DeviceFacts facts = able_device();
  facts.has_concurrent_managed_access = false;
  EXPECT_EQ(judge(facts).verdict, Verdict::NoConcurrentAccess);
  facts.is_wsl = true;
  EXPECT_NE(judge(facts).sentence.find("WSL"), std::string::npos);
  facts.is_wsl = false;
  facts.name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb";
  EXPECT_NE(judge(facts).sentence.find("MIG"), std::string::npos);
  for (const char* name : {"NVIDIA A100-40C", "GRID T4-16Q"}) {
    facts.name = name;
    EXPECT_NE(judge(facts).sentence.find("vGPU"), std::string::npos) << name;
  }
  for (const char* name : {"NVIDIA A100-SXM4-40GB", "Tesla V100-PCIE-16GB", "NVIDIA H100 80GB HBM3"}) {
    facts.name = name;
    EXPECT_EQ(judge(facts).sentence.find("vGPU"), std::string::npos) << name;
  }
}

TEST(Capabilities, a_mig_instance_with_concurrent_access_is_managed) {
  DeviceFacts facts = able_device();
  facts.name = "NVIDIA A100-SXM4-40GB MIG 1g.5gb";
  EXPECT_TRUE(judge(facts).can_manage());
}

TEST(Capabilities, facts_come_from_the_driver_and_an_unanswered_attribute_counts_as_absent) {
  FakeDriver driver;
  driver.attributes = {{CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1}, {CU_DEVICE_ATTRIBUTE_INTEGRATED, 0}};
  const FakeHost host(0);
  DriverApi api = driver.api();
  api.cuMemPrefetchAsync_v2 = nullptr;
  const DeviceFacts facts = collect_facts(api, 3, host.root());
  EXPECT_EQ(facts.device, 3);
  EXPECT_EQ(facts.name, "Fake 1");
  EXPECT_EQ(facts.driver_version, 13000);
  EXPECT_TRUE(facts.has_managed_memory);
  EXPECT_FALSE(facts.is_integrated);
  EXPECT_FALSE(facts.has_concurrent_managed_access);
  EXPECT_TRUE(facts.has_prefetch);
  EXPECT_FALSE(facts.has_prefetch_by_location);
  EXPECT_FALSE(facts.is_wsl);
}

TEST(Capabilities, wsl_is_recognised_by_its_kernel) {
  FakeDriver driver;
  FakeHost host(0);
  host.write("/proc/version", "Linux version 5.15.90.1-microsoft-standard-WSL2 (oe-user@oe-host)\n");
  EXPECT_TRUE(collect_facts(driver.api(), 0, host.root()).is_wsl);
  host.write("/proc/version", "Linux version 6.1.0-18-amd64 (debian-kernel@lists.debian.org)\n");
  EXPECT_FALSE(collect_facts(driver.api(), 0, host.root()).is_wsl);
}

}  // namespace
}  // namespace hmshim::uvm
