// Managed memory: advice, prefetch, discard, and what ranges say of themselves.
#include <algorithm>
#include <cstring>
#include <optional>

#include "tests/simgpu/driver/capture.hpp"
#include "tests/simgpu/driver/flavours.hpp"
#include "tests/simgpu/driver/memory.hpp"

namespace hmshim::simgpu {
namespace {

constexpr int kNoLocation = -2;  // CU_DEVICE_INVALID: what range attributes say where nothing was set

// The API's two ways to name a place. Nothing for a device that does not exist or a location kind that cannot be meant.
std::optional<Location> location_of(CUdevice device) {
  if (device == CU_DEVICE_CPU) return kHost;
  return device_exists(device) ? std::optional<Location>(device) : std::nullopt;
}
std::optional<Location> location_of(const CUmemLocation& location) {
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      return device_exists(location.id) ? std::optional<Location>(location.id) : std::nullopt;
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
      return kHost;
    default:
      return std::nullopt;
  }
}

bool is_managed(CUdeviceptr address, std::size_t bytes) {
  return bytes != 0 && place_of(address, bytes) == Place::Managed;
}

CUresult prefetch(Call call, CUstream handle, CUdeviceptr address, std::size_t bytes, const auto& where,
                  unsigned flags) {
  return in_context(call, [&](const Context&) -> CUresult {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const auto destination = location_of(where);
    if (!destination) return CUDA_ERROR_INVALID_DEVICE;
    if (flags != 0 || !is_managed(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    // No graph node can hold a prefetch.
    if (stream->capture.load() != nullptr) return refuse_capture(*stream);
    if (stream->is_legacy) {
      if (const CUresult result = check_legacy_stream(*stream); result != CUDA_SUCCESS) return result;
    }
    return to_result(driver().model->prefetch(stream->id, {address, bytes}, *destination));
  });
}

std::optional<Advice> advice_of(CUmem_advise advice) {
  switch (advice) {
    case CU_MEM_ADVISE_SET_READ_MOSTLY:
      return Advice::kSetReadMostly;
    case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
      return Advice::kUnsetReadMostly;
    case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      return Advice::kSetPreferredLocation;
    case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
      return Advice::kUnsetPreferredLocation;
    case CU_MEM_ADVISE_SET_ACCESSED_BY:
      return Advice::kSetAccessedBy;
    case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
      return Advice::kUnsetAccessedBy;
  }
  return std::nullopt;
}

CUresult advise(Call call, CUdeviceptr address, std::size_t bytes, CUmem_advise given, const auto& where) {
  return in_context(call, [&](const Context&) -> CUresult {
    const auto advice = advice_of(given);
    if (!advice || !is_managed(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
    const bool takes_location = *advice == Advice::kSetPreferredLocation || *advice == Advice::kSetAccessedBy ||
                                *advice == Advice::kUnsetAccessedBy;
    const auto location = location_of(where);
    if (takes_location && !location) return CUDA_ERROR_INVALID_DEVICE;
    return to_result(driver().model->advise({address, bytes}, *advice, location.value_or(kHost)));
  });
}

enum class BatchKind : std::uint8_t { Prefetch, Discard, DiscardAndPrefetch };

// The batch rules of cuda.h: flags 0, a stream of one's own, location indices that begin at 0 and ascend.
CUresult batch(Call call, BatchKind kind, CUstream handle, CUdeviceptr* addresses, std::size_t* sizes,
               std::size_t count, CUmemLocation* locations, std::size_t* first_of_location, std::size_t location_count,
               unsigned long long flags) {
  return in_context(call, [=](const Context&) -> CUresult {
    Stream* stream = find_stream(handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (addresses == nullptr || sizes == nullptr || count == 0 || flags != 0 || stream->is_legacy)
      return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture.load() != nullptr) return refuse_capture(*stream);
    std::vector<Location> destinations(count, kHost);
    if (kind != BatchKind::Discard) {
      if (locations == nullptr || first_of_location == nullptr || location_count == 0 || location_count > count) {
        return CUDA_ERROR_INVALID_VALUE;
      }
      for (std::size_t i = 0; i < location_count; ++i) {
        const std::size_t begin = first_of_location[i];
        const bool ascends = i == 0 ? begin == 0 : begin > first_of_location[i - 1];
        if (!ascends || begin >= count) return CUDA_ERROR_INVALID_VALUE;
        const auto location = location_of(locations[i]);
        if (!location) return CUDA_ERROR_INVALID_DEVICE;
        std::fill(destinations.begin() + static_cast<std::ptrdiff_t>(begin), destinations.end(), *location);
      }
    }
    for (std::size_t i = 0; i < count; ++i) {
      if (!is_managed(addresses[i], sizes[i])) return CUDA_ERROR_INVALID_VALUE;
    }
    Model& model = *driver().model;
    for (std::size_t i = 0; i < count; ++i) {
      const Range range{addresses[i], sizes[i]};
      Status status = kind == BatchKind::Prefetch ? Status::kOk : model.discard(stream->id, range);
      if (status == Status::kOk && kind != BatchKind::Discard)
        status = model.prefetch(stream->id, range, destinations[i]);
      if (status != Status::kOk) return to_result(status);
    }
    return CUDA_SUCCESS;
  });
}

// ---- range attributes

// What all blocks of a range agree on, else `otherwise`.
int common(CUdeviceptr address, std::size_t bytes, int otherwise, int (*read)(const BlockState&)) {
  std::optional<int> agreed;
  const std::uint64_t first = address / kBlockBytes * kBlockBytes;
  for (std::uint64_t block = first; block < address + bytes; block += kBlockBytes) {
    const auto state = driver().model->block_state(std::max<std::uint64_t>(block, address));
    const int value = state ? read(*state) : otherwise;
    if (agreed.value_or(value) != value) return otherwise;
    agreed = value;
  }
  return agreed.value_or(otherwise);
}

int location_id(Location location) {
  return location == kHost ? CU_DEVICE_CPU : location == kNowhere ? kNoLocation : location;
}

CUmemLocationType location_type(int id) {
  if (id == CU_DEVICE_CPU) return CU_MEM_LOCATION_TYPE_HOST;
  return id == kNoLocation ? CU_MEM_LOCATION_TYPE_INVALID : CU_MEM_LOCATION_TYPE_DEVICE;
}

// Devices that every block names as accessed-by, then CU_DEVICE_INVALID to the end of the array.
void accessed_by(CUdeviceptr address, std::size_t bytes, int* out, std::size_t count) {
  std::fill_n(out, count, kNoLocation);
  std::size_t filled = 0;
  for (int device = 0; device < driver().model->device_count() && filled < count; ++device) {
    bool is_named = true;
    for (std::uint64_t block = address / kBlockBytes * kBlockBytes; block < address + bytes; block += kBlockBytes) {
      const auto state = driver().model->block_state(std::max<std::uint64_t>(block, address));
      is_named = is_named && state && state->accessed_by[static_cast<std::size_t>(device)];
    }
    if (is_named) out[filled++] = device;
  }
}

CUresult range_attribute(void* data, std::size_t data_bytes, CUmem_range_attribute which, CUdeviceptr address,
                         std::size_t bytes) {
  if (data == nullptr || data_bytes == 0 || data_bytes % sizeof(int) != 0 || !is_managed(address, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (which == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    accessed_by(address, bytes, static_cast<int*>(data), data_bytes / sizeof(int));
    return CUDA_SUCCESS;
  }
  if (data_bytes != sizeof(int)) return CUDA_ERROR_INVALID_VALUE;
  const auto preferred = [](const BlockState& state) { return location_id(state.preferred); };
  const auto last = [](const BlockState& state) { return location_id(state.last_prefetch); };
  int value = 0;
  switch (which) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      value = common(address, bytes, 0, [](const BlockState& state) { return int{state.is_read_mostly}; });
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      value = common(address, bytes, kNoLocation, preferred);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      value = common(address, bytes, kNoLocation, last);
      break;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      value = location_type(common(address, bytes, kNoLocation, preferred));
      break;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      value = location_type(common(address, bytes, kNoLocation, last));
      break;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
  std::memcpy(data, &value, sizeof value);
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace hmshim::simgpu

using namespace hmshim::simgpu;

SIMGPU_BOTH(cuMemPrefetchAsync, (CUdeviceptr address, size_t bytes, CUdevice destination, CUstream stream),
            prefetch(kCall, on(stream), address, bytes, destination, 0))
SIMGPU_BOTH(cuMemPrefetchAsync_v2,
            (CUdeviceptr address, size_t bytes, CUmemLocation destination, unsigned flags, CUstream stream),
            prefetch(kCall, on(stream), address, bytes, destination, flags))
SIMGPU_BOTH(cuMemPrefetchBatchAsync,
            (CUdeviceptr * addresses, size_t* sizes, size_t count, CUmemLocation* locations, size_t* first_of_location,
             size_t location_count, unsigned long long flags, CUstream stream),
            batch(kCall, BatchKind::Prefetch, on(stream), addresses, sizes, count, locations, first_of_location,
                  location_count, flags))
SIMGPU_BOTH(cuMemDiscardBatchAsync,
            (CUdeviceptr * addresses, size_t* sizes, size_t count, unsigned long long flags, CUstream stream),
            batch(kCall, BatchKind::Discard, on(stream), addresses, sizes, count, nullptr, nullptr, 0, flags))
SIMGPU_BOTH(cuMemDiscardAndPrefetchBatchAsync,
            (CUdeviceptr * addresses, size_t* sizes, size_t count, CUmemLocation* locations, size_t* first_of_location,
             size_t location_count, unsigned long long flags, CUstream stream),
            batch(kCall, BatchKind::DiscardAndPrefetch, on(stream), addresses, sizes, count, locations,
                  first_of_location, location_count, flags))
// Attachment to one stream changes nothing where concurrentManagedAccess is set, as it is on every simulated device.
SIMGPU_BOTH(cuStreamAttachMemAsync, (CUstream stream, CUdeviceptr address, size_t, unsigned),
            in_context(kCall, [=](const Context&) {
              if (find_stream(on(stream)) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
              return place_of(address, 0) == Place::Managed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
            }))

extern "C" {

CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return advise(Call::cuMemAdvise, address, bytes, advice, device);
}
CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  return advise(Call::cuMemAdvise_v2, address, bytes, advice, location);
}

CUresult cuMemRangeGetAttribute(void* data, size_t data_bytes, CUmem_range_attribute which, CUdeviceptr address,
                                size_t bytes) {
  return in_context(Call::cuMemRangeGetAttribute,
                    [=](const Context&) { return range_attribute(data, data_bytes, which, address, bytes); });
}
CUresult cuMemRangeGetAttributes(void** data, size_t* data_bytes, CUmem_range_attribute* which, size_t count,
                                 CUdeviceptr address, size_t bytes) {
  return in_context(Call::cuMemRangeGetAttributes, [=](const Context&) {
    if (data == nullptr || data_bytes == nullptr || which == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (std::size_t i = 0; i < count; ++i) {
      const CUresult result = range_attribute(data[i], data_bytes[i], which[i], address, bytes);
      if (result != CUDA_SUCCESS) return result;
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
