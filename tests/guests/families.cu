// One family of calls a run, named by the first argument: what a program is told, printed line by line. On a large
// enough device a program must not be able to tell whether its device memory is managed.
#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "tests/guests/sum.hpp"

// What per-thread default streams make of them.
extern "C" {
CUresult cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream,
                             void**, void**);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig*, CUfunction, void**, void**);
CUresult cuLaunchCooperativeKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                        unsigned, CUstream, void**);
}

namespace {

constexpr std::size_t kCount = std::size_t{1} << 20;  // 4 MiB of floats
constexpr std::size_t kBytes = kCount * sizeof(float);
constexpr std::size_t kOddBytes = (std::size_t{3} << 20) + 100;

void say(const char* what, long long value) { std::printf("%s %lld\n", what, value); }
void say(const char* what, CUresult result) { std::printf("%s -> %d\n", what, static_cast<int>(result)); }
#define SAY(call) say(#call, call)
#define DRIVER(call)                                                     \
  do {                                                                   \
    if (const CUresult result = (call); result != CUDA_SUCCESS) {        \
      std::fprintf(stderr, "%s: driver error %d\n", #call, int(result)); \
      std::exit(1);                                                      \
    }                                                                    \
  } while (false)

CUdeviceptr allocate(std::size_t bytes) {
  CUdeviceptr address = 0;
  DRIVER(cuMemAlloc(&address, bytes));
  return address;
}

/// A launch of guest_sum: out = a + b.
void sum(CUdeviceptr out, CUdeviceptr a, CUdeviceptr b, cudaStream_t stream = nullptr) {
  guest_sum<<<guests::blocks(kCount), guests::kThreads, 0, stream>>>(
      reinterpret_cast<float*>(out), reinterpret_cast<const float*>(a), reinterpret_cast<const float*>(b), kCount);
  CHECK(cudaGetLastError());
}

void fill(CUdeviceptr address, float value) {
  unsigned bits;
  std::memcpy(&bits, &value, sizeof bits);
  DRIVER(cuMemsetD32(address, bits, kCount));
}

/// The value of all elements, NaN when they differ.
float value_of(CUdeviceptr address) {
  std::vector<float> values(kCount);
  DRIVER(cuMemcpyDtoH(values.data(), address, kBytes));
  for (const float value : values) {
    if (value != values[0]) return 0.0F / 0.0F;
  }
  return values[0];
}

// ---- pointer queries

void describe(CUdeviceptr base, std::size_t offset) {
  const CUdeviceptr address = base + offset;
  std::printf("at %zu\n", offset);
  CUcontext context = nullptr, current = nullptr;
  DRIVER(cuCtxGetCurrent(&current));
  unsigned type = 99, is_managed = 99, mapped = 99;
  int ordinal = 99;
  void* device_pointer = nullptr;
  void* host_pointer = &type;
  CUdeviceptr start = 0;
  std::size_t size = 0;
  SAY(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address));
  say("is the current context", context == current);
  SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  say("type", type);
  SAY(cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address));
  say("managed", is_managed);
  SAY(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
  say("ordinal", ordinal);
  SAY(cuPointerGetAttribute(&host_pointer, CU_POINTER_ATTRIBUTE_HOST_POINTER, address));
  SAY(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address));
  SAY(cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address));
  std::printf("range %lld + %zu\n", static_cast<long long>(start - base), size);

  CUpointer_attribute which[] = {
      CU_POINTER_ATTRIBUTE_CONTEXT,          CU_POINTER_ATTRIBUTE_MEMORY_TYPE,    CU_POINTER_ATTRIBUTE_IS_MANAGED,
      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,   CU_POINTER_ATTRIBUTE_DEVICE_POINTER, CU_POINTER_ATTRIBUTE_HOST_POINTER,
      CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,     CU_POINTER_ATTRIBUTE_MAPPED};
  void* data[] = {&context, &type, &is_managed, &ordinal, &device_pointer, &host_pointer, &start, &size, &mapped};
  SAY(cuPointerGetAttributes(9, which, data, address));
  std::printf("plural: context %d type %u managed %u ordinal %d device %lld host %d range %lld + %zu mapped %u\n",
              context == current, type, is_managed, ordinal,
              static_cast<long long>(reinterpret_cast<CUdeviceptr>(device_pointer) - base), host_pointer != nullptr,
              static_cast<long long>(start - base), size, mapped);

  cudaPointerAttributes attributes{};
  CHECK(cudaPointerGetAttributes(&attributes, reinterpret_cast<const void*>(address)));
  std::printf("runtime: type %d device %d device pointer %lld host %d\n", attributes.type, attributes.device,
              static_cast<long long>(reinterpret_cast<CUdeviceptr>(attributes.devicePointer) - base),
              attributes.hostPointer != nullptr);

  SAY(cuMemGetAddressRange(&start, &size, address));
  std::printf("range %lld + %zu\n", static_cast<long long>(start - base), size);
  SAY(cuMemGetAddressRange(nullptr, nullptr, address));
  int location = 0;
  SAY(cuMemRangeGetAttribute(&location, sizeof location, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, address, 1));
  const CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  SAY(cuMemAdvise(address, 1, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
  SAY(cuMemPrefetchAsync(address, 1, host, 0, nullptr));
  SAY(cuStreamAttachMemAsync(nullptr, address, 0, CU_MEM_ATTACH_GLOBAL));
}

void pointers() {
  const CUdeviceptr large = allocate(kOddBytes);
  const CUdeviceptr small = allocate(1000);
  for (const std::size_t offset : {std::size_t{0}, std::size_t{4096}, kOddBytes - 1}) describe(large, offset);
  describe(small, 999);
  CUdeviceptr managed = 0;
  DRIVER(cuMemAllocManaged(&managed, kOddBytes, CU_MEM_ATTACH_GLOBAL));
  std::puts("of the program's own managed memory");
  describe(managed, 100);
  DRIVER(cuMemFree(managed));
  DRIVER(cuMemFree(small));
  DRIVER(cuMemFree(large));
  unsigned type = 0;
  SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, large));
  SAY(cuMemGetAddressRange(nullptr, nullptr, large));
}

// ---- pitched allocation

void pitch() {
  constexpr std::size_t kMax = SIZE_MAX;
  struct Case {
    std::size_t width, height;
    unsigned element;
  };
  const Case cases[] = {{0, 1, 4},
                        {1, 0, 4},
                        {1, 1, 0},
                        {1, 1, 3},
                        {1, 1, 4},
                        {511, 3000, 4},
                        {512, 3000, 8},
                        {513, 3000, 16},
                        {5000, 1000, 4},
                        {kMax, 1, 4},
                        {kMax - 510, 2, 4},
                        {kMax / 2, 3, 4},
                        {1, kMax, 4},
                        {1, kMax / 2, 4},
                        {kMax, kMax, 16},
                        {512, kMax / 512, 4},
                        {512, kMax / 512 + 1, 4},
                        {std::size_t{1} << 31, 2, 4}};
  for (const Case& each : cases) {
    CUdeviceptr address = 0;
    std::size_t row = 77;
    const CUresult result = cuMemAllocPitch(&address, &row, each.width, each.height, each.element);
    std::printf("%zu x %zu of %u -> %d pitch %zu\n", each.width, each.height, each.element, static_cast<int>(result),
                row);
    if (result != CUDA_SUCCESS) continue;
    say("aligned", address % 512 == 0);
    DRIVER(cuMemsetD2D8(address, row, 5, each.width, each.height));
    unsigned char last = 0;
    DRIVER(cuMemcpyDtoH(&last, address + (each.height - 1) * row + each.width - 1, 1));
    say("last byte", last);
    DRIVER(cuMemFree(address));
  }
  std::size_t row = 0;
  CUdeviceptr address = 0;
  SAY(cuMemAllocPitch(nullptr, &row, 4, 4, 4));
  SAY(cuMemAllocPitch(&address, nullptr, 4, 4, 4));
  cudaPitchedPtr box{};
  CHECK(cudaMalloc3D(&box, make_cudaExtent(1000, 100, 30)));
  std::printf("3D pitch %zu size %zu x %zu\n", box.pitch, box.xsize, box.ysize);
  CHECK(cudaFree(box.ptr));
}

// ---- the program's own managed memory

void managed() {
  CUdeviceptr own = 0;
  SAY(cuMemAllocManaged(&own, 4 * kBytes, CU_MEM_ATTACH_GLOBAL));
  if (own == 0) return;
  auto* const values = reinterpret_cast<float*>(own);
  for (std::size_t i = 0; i < kCount; ++i) values[i] = 1;
  const CUdeviceptr a = allocate(kBytes);
  const CUdeviceptr b = allocate(kBytes);
  fill(a, 2);
  const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  SAY(cuMemPrefetchAsync(own, 4 * kBytes, device, 0, nullptr));
  sum(b, own, a);
  std::printf("sum %g\n", value_of(b));
  SAY(cuMemAdvise(own, kBytes, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
  int is_read_mostly = 0;
  SAY(cuMemRangeGetAttribute(&is_read_mostly, sizeof is_read_mostly, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, own, kBytes));
  say("read mostly", is_read_mostly);
  std::printf("from the host %g\n", values[kCount - 1]);
  DRIVER(cuMemFree(own));
  DRIVER(cuMemFree(a));
  DRIVER(cuMemFree(b));
}

// ---- what the library cannot manage

void escapes() {
  CUarray flat = nullptr, volume = nullptr;
  CUmipmappedArray mipmaps = nullptr;
  const CUDA_ARRAY_DESCRIPTOR flat_shape{1024, 512, CU_AD_FORMAT_FLOAT, 2};
  const CUDA_ARRAY3D_DESCRIPTOR volume_shape{64, 64, 64, CU_AD_FORMAT_HALF, 1, 0};
  DRIVER(cuArrayCreate(&flat, &flat_shape));
  SAY(cuArray3DCreate(&volume, &volume_shape));
  SAY(cuMipmappedArrayCreate(&mipmaps, &volume_shape, 3));
  SAY(cuArrayCreate(&flat, nullptr));

  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  std::size_t granularity = 0;
  DRIVER(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr address = 0;
  DRIVER(cuMemCreate(&handle, 2 * granularity, &properties, 0));
  DRIVER(cuMemAddressReserve(&address, 2 * granularity, 0, 0, 0));
  DRIVER(cuMemMap(address, 2 * granularity, 0, handle, 0));
  const CUmemAccessDesc access{properties.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  DRIVER(cuMemSetAccess(address, 2 * granularity, &access, 1));
  SAY(cuMemRelease(handle));
  fill(address, 3);
  const CUdeviceptr a = allocate(kBytes);
  sum(a, address, address);
  std::printf("sum %g\n", value_of(a));
  SAY(cuMemUnmap(address, 2 * granularity));
  SAY(cuMemAddressFree(address, 2 * granularity));

  DRIVER(cuMemcpyDtoA(flat, 0, a, 1000));
  DRIVER(cuMemcpyAtoD(a, flat, 0, 1000));
  std::printf("through an array %g\n", value_of(a));
  SAY(cuMipmappedArrayDestroy(mipmaps));
  SAY(cuArrayDestroy(volume));
  SAY(cuArrayDestroy(flat));

  void* pinned = nullptr;
  SAY(cuMemHostAlloc(&pinned, 100000, 0));
  SAY(cuMemFreeHost(pinned));
  std::vector<char> pageable(200000);
  SAY(cuMemHostRegister(pageable.data(), pageable.size(), 0));
  SAY(cuMemHostUnregister(pageable.data()));
  // A range that is no host memory: whatever the driver says, no error may stay behind.
  std::printf("registering device memory fails %d\n",
              cuMemHostRegister(reinterpret_cast<void*>(a), kBytes, 0) != CUDA_SUCCESS);
  SAY(cuCtxSynchronize());
  DRIVER(cuMemFree(a));
}

// ---- copies: sixteen arrays of 4 MiB, of which a small device holds half

std::vector<CUdeviceptr> sixteen() {
  std::vector<CUdeviceptr> arrays;
  for (int i = 0; i < 16; ++i) {
    arrays.push_back(allocate(kBytes));
    fill(arrays.back(), static_cast<float>(i));
  }
  return arrays;
}

/// Prints the first value of each and frees them, last first.
void finish(const std::vector<CUdeviceptr>& arrays) {
  for (std::size_t i = arrays.size(); i-- > 0;) {
    std::printf("%zu: %g\n", i, value_of(arrays[i]));
    DRIVER(cuMemFree(arrays[i]));
  }
}

/// Only copies touch memory: no block may have come to the device by a fault.
void copies() {
  const auto arrays = sixteen();
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUdeviceptr to[] = {arrays[0], arrays[1]};
  CUdeviceptr from[] = {arrays[12], arrays[13]};
  std::size_t sizes[] = {kBytes, kBytes};
  CUmemcpyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  std::size_t first = 0;
  SAY(cuMemcpyBatchAsync(to, from, sizes, 2, &attributes, &first, 1, stream));
  SAY(cuStreamSynchronize(stream));

  CUDA_MEMCPY3D_PEER peer{};
  peer.srcMemoryType = peer.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  peer.srcDevice = arrays[14];
  peer.dstDevice = arrays[2];
  peer.WidthInBytes = kBytes;
  peer.Height = peer.Depth = 1;
  SAY(cuMemcpy3DPeer(&peer));
  peer.srcDevice = arrays[15];
  peer.dstDevice = arrays[3];
  SAY(cuMemcpy3DPeerAsync(&peer, stream));
  SAY(cuStreamSynchronize(stream));
  SAY(cuMemcpyPeer(arrays[4], nullptr, arrays[8], nullptr, kBytes));
  CUDA_MEMCPY2D plane{};
  plane.srcMemoryType = plane.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  plane.srcDevice = arrays[9];
  plane.dstDevice = arrays[5];
  plane.WidthInBytes = plane.srcPitch = plane.dstPitch = kBytes / 1024;
  plane.Height = 1024;
  SAY(cuMemcpy2D(&plane));
  CUarray array = nullptr;
  const CUDA_ARRAY_DESCRIPTOR shape{kCount, 0, CU_AD_FORMAT_FLOAT, 1};
  SAY(cuArrayCreate(&array, &shape));
  SAY(cuMemcpyDtoA(array, 0, arrays[10], kBytes));
  SAY(cuMemcpyAtoD(arrays[6], array, 0, kBytes));
  SAY(cuArrayDestroy(array));
  finish(arrays);
  CHECK(cudaStreamDestroy(stream));
}

// ---- graphs

CUgraph captured(const std::vector<CUdeviceptr>& arrays, cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(arrays[0], arrays[1], arrays[2], stream);
  DRIVER(cuMemcpyDtoDAsync(arrays[3], arrays[0], kBytes, stream));
  DRIVER(cuMemsetD32Async(arrays[4], 0x40000000, kCount, stream));
  sum(arrays[5], arrays[4], arrays[3], stream);
  CHECK(cudaStreamEndCapture(stream, &graph));
  std::size_t nodes = 0;
  DRIVER(cuGraphGetNodes(graph, nullptr, &nodes));
  say("captured nodes", static_cast<long long>(nodes));
  return graph;
}

struct SumParameters {
  CUdeviceptr out, a, b;
  std::size_t count = kCount;
  void* pointers[4] = {&out, &a, &b, &count};
  CUDA_KERNEL_NODE_PARAMS node{};

  SumParameters(CUfunction function, CUdeviceptr out_, CUdeviceptr a_, CUdeviceptr b_) : out(out_), a(a_), b(b_) {
    node.func = function;
    node.gridDimX = guests::blocks(kCount);
    node.blockDimX = guests::kThreads;
    node.gridDimY = node.gridDimZ = node.blockDimY = node.blockDimZ = 1;
    node.kernelParams = pointers;
  }
};

void graphs() {
  const auto arrays = sixteen();
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  CUgraph graph = captured(arrays, stream);

  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  CHECK(cudaGetKernel(&kernel, reinterpret_cast<const void*>(guest_sum)));
  DRIVER(cuKernelGetFunction(&function, kernel));
  CUgraph child = nullptr;
  DRIVER(cuGraphCreate(&child, 0));
  CUgraphNode in_child = nullptr, added = nullptr, node = nullptr;
  SumParameters first(function, arrays[6], arrays[7], arrays[8]);
  DRIVER(cuGraphAddKernelNode(&in_child, child, nullptr, 0, &first.node));
  DRIVER(cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child));
  SumParameters second(function, arrays[9], arrays[10], arrays[11]);
  DRIVER(cuGraphAddKernelNode(&added, graph, nullptr, 0, &second.node));

  CUgraphExec exec = nullptr;
  DRIVER(cuGraphInstantiate(&exec, graph, 0));
  for (int launch = 0; launch < 3; ++launch) {
    DRIVER(cuGraphLaunch(exec, stream));
    DRIVER(cuStreamSynchronize(stream));
    // What the graph uses is pushed out meanwhile where the device is small.
    sum(arrays[12], arrays[13], arrays[14]);
    DRIVER(cuCtxSynchronize());
  }
  SumParameters third(function, arrays[9], arrays[15], arrays[15]);
  DRIVER(cuGraphExecKernelNodeSetParams(exec, added, &third.node));
  DRIVER(cuGraphLaunch(exec, stream));
  DRIVER(cuStreamSynchronize(stream));
  DRIVER(cuGraphExecDestroy(exec));
  DRIVER(cuGraphDestroy(child));
  DRIVER(cuGraphDestroy(graph));
  finish(arrays);
  CHECK(cudaStreamDestroy(stream));
}

/// While one stream is captured, others go on with memory that is not resident: nothing may get into the capture.
void capture_beside() {
  const auto arrays = sixteen();
  cudaStream_t captured_stream = nullptr, other = nullptr;
  CHECK(cudaStreamCreateWithFlags(&captured_stream, cudaStreamNonBlocking));
  CHECK(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
  cudaGraph_t graph = nullptr;
  CHECK(cudaStreamBeginCapture(captured_stream, cudaStreamCaptureModeGlobal));
  for (std::size_t i = 0; i + 2 < arrays.size(); ++i) {
    sum(arrays[i], arrays[i + 1], arrays[i + 2], captured_stream);
    sum(arrays[i], arrays[i + 1], arrays[i + 2], other);
  }
  CHECK(cudaStreamEndCapture(captured_stream, &graph));
  std::size_t nodes = 0;
  DRIVER(cuGraphGetNodes(graph, nullptr, &nodes));
  say("captured nodes", static_cast<long long>(nodes));
  CHECK(cudaStreamSynchronize(other));
  CHECK(cudaGraphDestroy(graph));
  finish(arrays);
  CHECK(cudaStreamDestroy(captured_stream));
  CHECK(cudaStreamDestroy(other));
}

// ---- tensor maps

void tensor_maps() {
  const auto arrays = sixteen();
  alignas(64) guests::TensorMapArguments arguments{};
  const cuuint64_t dims[] = {kCount};
  const cuuint64_t strides[] = {kBytes};
  const cuuint32_t box[] = {256};
  const cuuint32_t steps[] = {1};
  const auto encode = [&](CUdeviceptr address) {
    CUtensorMap map;
    DRIVER(cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 1, reinterpret_cast<void*>(address), dims,
                                  strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                                  CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return map;
  };
  for (std::size_t i = 0; i + 1 < arrays.size(); ++i) {
    const CUtensorMap out = encode(arrays[i]);
    const CUtensorMap in = encode(arrays[i + 1]);
    std::memcpy(&arguments.out, &out, sizeof out);
    std::memcpy(&arguments.in, &in, sizeof in);
    arguments.count = kCount;
    guest_double_map<<<1, 1>>>(arguments);
    CHECK(cudaGetLastError());
    CHECK(cudaDeviceSynchronize());
  }
  finish(arrays);
}

// ---- launches, each way three times

void launches() {
  const CUdeviceptr total = allocate(kBytes), one = allocate(kBytes);
  fill(total, 0);
  fill(one, 1);
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  CHECK(cudaGetKernel(&kernel, reinterpret_cast<const void*>(guest_sum)));
  DRIVER(cuKernelGetFunction(&function, kernel));
  std::size_t count = kCount;
  CUdeviceptr out = total, a = total, b = one;
  void* arguments[] = {&out, &a, &b, &count};
  CUlaunchConfig config{};
  config.gridDimX = guests::blocks(kCount);
  config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
  config.blockDimX = guests::kThreads;
  const unsigned blocks = config.gridDimX, threads = config.blockDimX;
  for (int i = 0; i < 3; ++i) {
    DRIVER(cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, nullptr, arguments, nullptr));
    DRIVER(cuLaunchKernelEx(&config, function, arguments, nullptr));
    DRIVER(cuLaunchCooperativeKernel(function, blocks, 1, 1, threads, 1, 1, 0, nullptr, arguments));
    DRIVER(cuCtxSynchronize());
    DRIVER(cuLaunchKernel_ptsz(function, blocks, 1, 1, threads, 1, 1, 0, nullptr, arguments, nullptr));
    DRIVER(cuLaunchKernelEx_ptsz(&config, function, arguments, nullptr));
    DRIVER(cuLaunchCooperativeKernel_ptsz(function, blocks, 1, 1, threads, 1, 1, 0, nullptr, arguments));
    DRIVER(cuCtxSynchronize());
  }
  std::printf("%g\n", value_of(total));
  DRIVER(cuMemFree(total));
  DRIVER(cuMemFree(one));
}

struct Family {
  const char* name;
  void (*run)();
};
constexpr Family kFamilies[] = {{"pointers", pointers},
                                {"pitch", pitch},
                                {"managed", managed},
                                {"escapes", escapes},
                                {"copies", copies},
                                {"graphs", graphs},
                                {"capture_beside", capture_beside},
                                {"tensor_maps", tensor_maps},
                                {"launches", launches}};

}  // namespace

int main(int argc, char** argv) {
  CHECK(cudaFree(nullptr));  // makes the context
  for (const Family& family : kFamilies) {
    if (argc != 2 || std::string(argv[1]) != family.name) continue;
    family.run();
    return 0;
  }
  std::fprintf(stderr, "usage: families NAME\n");
  return 2;
}
