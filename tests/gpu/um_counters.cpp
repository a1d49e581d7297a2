// The driver's own tally of unified memory, by kind and cause, for one process: CUDA loads this library into it when
// CUDA_INJECTION64_PATH names it, and at exit one JSON object is in the file that UM_COUNTERS names. Measures, and
// costs time on each fault: for runs whose bytes are wanted, not whose seconds.
#include <cupti.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

// Causes of the kinds that count bytes (CUpti_ActivityUnifiedMemoryMigrationCause).
constexpr std::array kCauses = {"unknown", "user", "coherence", "prefetch", "eviction", "access_counters"};

std::array<std::atomic<std::uint64_t>, kCauses.size()> h2d_bytes{};
std::array<std::atomic<std::uint64_t>, kCauses.size()> d2h_bytes{};
std::atomic<std::uint64_t> cpu_faults{0};
std::atomic<std::uint64_t> gpu_fault_groups{0};
std::atomic<std::uint64_t> throttlings{0};
std::atomic<std::uint64_t> lost{0};
std::atomic<const char*> error{"no context was made"};

void note(const char* what, CUptiResult result) {
  const char* text = nullptr;
  cuptiGetResultString(result, &text);
  static char message[256];
  std::snprintf(message, sizeof message, "%s: %s", what, text != nullptr ? text : "unknown");
  error = message;
}

void count(const CUpti_ActivityUnifiedMemoryCounter3& record) {
  const auto cause = record.flags < kCauses.size() ? record.flags : 0;
  switch (record.counterKind) {
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD:
      h2d_bytes[cause] += record.value;
      return;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH:
      d2h_bytes[cause] += record.value;
      return;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT:
      ++cpu_faults;
      return;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT:
      gpu_fault_groups += record.value;
      return;
    case CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING:
      ++throttlings;
      return;
    default:
      return;
  }
}

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

void CUPTIAPI give_buffer(std::uint8_t** buffer, std::size_t* bytes, std::size_t* most_records) {
  *buffer = static_cast<std::uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *bytes = *buffer != nullptr ? kBufferBytes : 0;
  *most_records = 0;
}

void CUPTIAPI take_buffer(CUcontext, std::uint32_t, std::uint8_t* buffer, std::size_t, std::size_t valid_bytes) {
  CUpti_Activity* record = nullptr;
  while (cuptiActivityGetNextRecord(buffer, valid_bytes, &record) == CUPTI_SUCCESS) {
    if (record->kind == CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER) {
      count(*reinterpret_cast<const CUpti_ActivityUnifiedMemoryCounter3*>(record));
    }
  }
  std::size_t dropped = 0;
  if (cuptiActivityGetNumDroppedRecords(nullptr, 0, &dropped) == CUPTI_SUCCESS) lost += dropped;
  std::free(buffer);
}

// After cuInit, and before the kind is enabled, as CUPTI wants it.
void start_counting() {
  std::array<CUpti_ActivityUnifiedMemoryCounterConfig, 5> configs{};
  constexpr std::array kKinds = {CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_HTOD,
                                 CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_BYTES_TRANSFER_DTOH,
                                 CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_CPU_PAGE_FAULT_COUNT,
                                 CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_GPU_PAGE_FAULT,
                                 CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_KIND_THROTTLING};
  for (std::size_t i = 0; i < configs.size(); ++i) {
    configs[i].scope = CUPTI_ACTIVITY_UNIFIED_MEMORY_COUNTER_SCOPE_PROCESS_SINGLE_DEVICE;
    configs[i].kind = kKinds[i];
    configs[i].enable = 1;
  }
  if (const auto result = cuptiActivityConfigureUnifiedMemoryCounter(configs.data(), configs.size());
      result != CUPTI_SUCCESS) {
    return note("cuptiActivityConfigureUnifiedMemoryCounter", result);
  }
  if (const auto result = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_UNIFIED_MEMORY_COUNTER); result != CUPTI_SUCCESS) {
    return note("cuptiActivityEnable", result);
  }
  error = nullptr;
}

void CUPTIAPI on_resource(void*, CUpti_CallbackDomain, CUpti_CallbackId, const void*) {
  static std::atomic<bool> has_started{false};
  if (!has_started.exchange(true)) start_counting();
}

void write(std::FILE* file, const char* name, const std::array<std::atomic<std::uint64_t>, kCauses.size()>& bytes) {
  std::fprintf(file, "\"%s\": {", name);
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    std::fprintf(file, "%s\"%s\": %llu", i == 0 ? "" : ", ", kCauses[i], static_cast<unsigned long long>(bytes[i]));
  }
  std::fprintf(file, "}, ");
}

void write_counters() {
  const char* path = std::getenv("UM_COUNTERS");
  std::FILE* file = path != nullptr ? std::fopen(path, "w") : nullptr;
  if (file == nullptr) return;
  if (error == nullptr) {
    if (const auto result = cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED); result != CUPTI_SUCCESS) {
      note("cuptiActivityFlushAll", result);
    }
  }
  if (const char* why = error; why != nullptr) {
    std::fprintf(file, "{\"error\": \"%s\"}\n", why);
  } else {
    std::fprintf(file, "{");
    write(file, "h2d_bytes", h2d_bytes);
    write(file, "d2h_bytes", d2h_bytes);
    std::fprintf(file,
                 "\"cpu_faults\": %llu, \"gpu_fault_groups\": %llu, \"throttlings\": %llu, \"lost_records\": %llu}\n",
                 static_cast<unsigned long long>(cpu_faults), static_cast<unsigned long long>(gpu_fault_groups),
                 static_cast<unsigned long long>(throttlings), static_cast<unsigned long long>(lost));
  }
  std::fclose(file);
}

}  // namespace

extern "C" int InitializeInjection() {
  std::atexit(write_counters);
  CUpti_SubscriberHandle subscriber = nullptr;
  if (const auto result = cuptiActivityRegisterCallbacks(give_buffer, take_buffer); result != CUPTI_SUCCESS) {
    note("cuptiActivityRegisterCallbacks", result);
  } else if (const auto subscribed =
                 cuptiSubscribe(&subscriber, reinterpret_cast<CUpti_CallbackFunc>(on_resource), nullptr);
             subscribed != CUPTI_SUCCESS) {
    note("cuptiSubscribe", subscribed);
  } else if (const auto enabled =
                 cuptiEnableCallback(1, subscriber, CUPTI_CB_DOMAIN_RESOURCE, CUPTI_CBID_RESOURCE_CONTEXT_CREATED);
             enabled != CUPTI_SUCCESS) {
    note("cuptiEnableCallback", enabled);
  }
  return 1;
}
