#include <atomic>
#include <random>
#include <sstream>
#include <thread>

#include "tests/unit/simgpu/model_gpu.hpp"

namespace hmshim::simgpu {
namespace {

/// Real time that differs from run to run: what the model must not notice.
class Jitter {
 public:
  explicit Jitter(unsigned seed) : random_(seed) {}
  void operator()() {
    const unsigned roll = random_() % 8;
    if (roll == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 500));
    if (roll == 1) std::this_thread::yield();
  }

 private:
  std::minstd_rand random_;
};

std::string figures(Model& model) {
  const Stats stats = model.stats();
  std::ostringstream text;
  for (const DeviceStats& device : stats.devices) {
    for (std::size_t cause = 0; cause < kCauseCount; ++cause) {
      text << to_string(static_cast<Cause>(cause)) << ' ' << device.h2d_bytes[cause] << ' ' << device.d2h_bytes[cause]
           << '\n';
    }
    text << device.fault_groups << ' ' << device.evicted_blocks << ' ' << device.stolen_unused_chunks << ' '
         << device.stall_ns << ' ' << device.kernel_busy_ns << '\n';
  }
  text << stats.now_ns;
  return text.str();
}

/// A guest that launches over more memory than there is, beside one agent that demotes and one that prefetches, each by
/// its own virtual clock.
std::string run_with_migrators(unsigned seed) {
  Gpu gpu;
  constexpr std::uint64_t kBlocks = 8;
  const std::uint64_t a = gpu.managed(kBlocks * kBlockBytes);
  std::vector<std::thread> threads;
  for (const bool demotes : {true, false}) {
    const AgentId agent = gpu.model.register_agent(demotes ? "demoter" : "fetcher");
    threads.emplace_back([&gpu, a, agent, demotes, seed] {
      Jitter jitter(seed + (demotes ? 1 : 2));
      EXPECT_EQ(gpu.model.attach_agent(agent), Status::kOk);
      StreamId stream = 0;
      EXPECT_EQ(gpu.model.create_stream(0, StreamKind::kNonBlocking, &stream), Status::kOk);
      for (std::uint64_t step = 0; step < 60; ++step) {
        jitter();
        const std::uint64_t target = Gpu::block(a, (step * (demotes ? 3 : 5)) % kBlocks);
        EXPECT_EQ(gpu.model.prefetch(stream, {target, kBlockBytes}, demotes ? kHost : 0), Status::kOk);
        gpu.model.sleep_until(gpu.model.now() + 70'000);
      }
      gpu.model.detach_agent();
    });
  }
  Jitter jitter(seed);
  for (std::uint64_t step = 0; step < 200; ++step) {
    jitter();
    gpu.launch({{Gpu::block(a, step % kBlocks), kBlockBytes, AccessKind::kWrite}}, 50'000);
    if (step % 10 == 9) gpu.sync();
  }
  gpu.sync();
  gpu.model.begin_external_wait();
  for (std::thread& thread : threads) thread.join();
  gpu.model.end_external_wait();
  EXPECT_EQ(gpu.model.synchronize_device(0), Status::kOk);
  return figures(gpu.model);
}

TEST(ModelAgents, a_run_is_the_same_at_every_thread_timing) {
  const std::string first = run_with_migrators(1);
  for (unsigned seed = 2; seed < 12; ++seed) EXPECT_EQ(run_with_migrators(seed * 1000), first);
}

TEST(ModelAgents, two_runs_without_agents_are_the_same) {
  std::string runs[2];
  for (std::string& run : runs) {
    Gpu gpu;
    const std::uint64_t a = gpu.managed(9 * kBlockBytes);
    for (std::uint64_t i = 0; i < 40; ++i) gpu.write(Gpu::block(a, i * 7 % 9));
    run = figures(gpu.model);
  }
  EXPECT_EQ(runs[0], runs[1]);
}

TEST(ModelAgents, time_waits_for_an_agent_that_has_not_waited) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(kBlockBytes);
  gpu.write(a);
  const AgentId agent = gpu.model.register_agent("slow");
  std::thread thread([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));  // the guest waits for this in real time
    EXPECT_EQ(gpu.model.attach_agent(agent), Status::kOk);
    StreamId stream = 0;
    EXPECT_EQ(gpu.model.create_stream(0, StreamKind::kNonBlocking, &stream), Status::kOk);
    EXPECT_EQ(gpu.model.prefetch(stream, {a, kBlockBytes}, kHost), Status::kOk);
    gpu.model.detach_agent();
  });
  gpu.launch({}, 10'000'000);
  gpu.sync();
  EXPECT_FALSE(gpu.on_device(a));
  thread.join();
}

TEST(ModelAgents, a_wake_arrives_at_the_wakers_time_and_is_not_lost) {
  Gpu gpu;
  const AgentId agent = gpu.model.register_agent("idler");
  TimeNs woken_at[2] = {0, 0};
  std::thread thread([&] {
    EXPECT_EQ(gpu.model.attach_agent(agent), Status::kOk);
    for (TimeNs& time : woken_at) {
      gpu.model.idle();
      time = gpu.model.now();
    }
    gpu.model.detach_agent();
  });
  gpu.model.sleep_until(5'000);
  EXPECT_EQ(gpu.model.wake_agent(agent), Status::kOk);
  gpu.model.sleep_until(8'000);
  EXPECT_EQ(gpu.model.wake_agent(agent), Status::kOk);
  gpu.model.begin_external_wait();
  thread.join();
  gpu.model.end_external_wait();
  EXPECT_EQ(woken_at[0], 5'001);
  EXPECT_EQ(woken_at[1], 8'001);
  EXPECT_EQ(gpu.model.wake_agent(agent), Status::kInvalidHandle);
}

TEST(ModelAgents, a_woken_agent_finds_what_the_guest_does_before_its_next_call) {
  Gpu gpu;
  const AgentId agent = gpu.model.register_agent("idler");
  std::atomic<bool> is_done{false};
  bool was_done = false;
  std::thread thread([&] {
    EXPECT_EQ(gpu.model.attach_agent(agent), Status::kOk);
    gpu.model.idle();
    was_done = is_done;
    gpu.model.detach_agent();
  });
  gpu.model.sleep_until(5'000);
  EXPECT_EQ(gpu.model.wake_agent(agent), Status::kOk);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  is_done = true;
  gpu.model.begin_external_wait();
  thread.join();
  gpu.model.end_external_wait();
  EXPECT_TRUE(was_done);
}

TEST(ModelAgents, threads_of_the_guest_share_a_clock_and_keep_the_totals) {
  Gpu gpu;
  const std::uint64_t a = gpu.managed(4 * kBlockBytes);
  std::vector<std::thread> threads;
  for (std::uint64_t i = 0; i < 4; ++i) {
    threads.emplace_back([&gpu, a, i] {
      StreamId stream = 0;
      EXPECT_EQ(gpu.model.create_stream(0, StreamKind::kNonBlocking, &stream), Status::kOk);
      for (int step = 0; step < 50; ++step) {
        const Access access{Gpu::block(a, i), kBlockBytes, AccessKind::kWrite};
        EXPECT_EQ(gpu.model.launch(stream, {{access}, 1'000, [=] { ++byte_at(Gpu::block(a, i)); }}), Status::kOk);
        if (step % 5 == 0) {
          EXPECT_EQ(gpu.model.synchronize_stream(stream), Status::kOk);
        }
      }
      EXPECT_EQ(gpu.model.synchronize_stream(stream), Status::kOk);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (std::uint64_t i = 0; i < 4; ++i) EXPECT_EQ(byte_at(Gpu::block(a, i)), 50);
  EXPECT_EQ(gpu.stats().kernels, 200);
  EXPECT_EQ(gpu.stats().kernel_busy_ns, 200 * 1'000);
}

TEST(ModelAgents, a_body_that_waits_for_another_threads_launch_does_not_block_it) {
  Gpu gpu;
  StreamId other = 0;
  EXPECT_EQ(gpu.model.create_stream(0, StreamKind::kNonBlocking, &other), Status::kOk);
  std::atomic<bool> has_launched{false};
  std::atomic<bool> is_in_body{false};
  EXPECT_EQ(gpu.model.host_function(gpu.stream,
                                    [&] {
                                      is_in_body = true;
                                      while (!has_launched) std::this_thread::yield();
                                    }),
            Status::kOk);
  std::thread thread([&] {
    while (!is_in_body) std::this_thread::yield();
    EXPECT_EQ(gpu.model.launch(other, {{}, 1, nullptr}), Status::kOk);
    has_launched = true;
  });
  gpu.sync();
  thread.join();
}

}  // namespace
}  // namespace hmshim::simgpu
