// The stand-in for libcublasLt.so.13: products with an epilogue, from the public header.
#include <cublasLt.h>

#include <algorithm>
#include <cstring>
#include <new>

#include "tests/frameworks/standins/product.hpp"
#include "tests/simgpu/simgpu.h"

#define STANDIN_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace hmshim::frameworks;

// What lies behind the opaque descriptors of the header.
struct Description {
  std::int32_t transpose_a = CUBLAS_OP_N;
  std::int32_t transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  void* bias = nullptr;
  void* auxiliary = nullptr;
  std::int64_t auxiliary_leading = 0;
};
struct Layout {
  cudaDataType type;
  std::uint64_t rows;
  std::uint64_t columns;
  std::int64_t leading;
  std::int32_t count;
  std::int64_t stride;
};
struct Preference {
  std::uint64_t workspace_bytes = 0;
};
static_assert(sizeof(Description) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));

template <class Inside, class Opaque, class... Values>
cublasStatus_t make(Opaque** out, Values... values) {
  if (out == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *out = new (std::nothrow) Opaque{};
  if (*out == nullptr) return CUBLAS_STATUS_ALLOC_FAILED;
  new (*out) Inside{values...};
  return CUBLAS_STATUS_SUCCESS;
}
template <class Inside, class Opaque>
Inside& inside(Opaque* opaque) {
  return *reinterpret_cast<Inside*>(opaque);
}
template <class Value>
cublasStatus_t take(Value& member, const void* buffer, std::size_t bytes) {
  if (buffer == nullptr || bytes != sizeof member) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&member, buffer, bytes);
  return CUBLAS_STATUS_SUCCESS;
}

Matrix matrix(const void* address, cublasLtMatrixLayout_t layout) {
  const auto& is = inside<Layout>(layout);
  return {.address = address,
          .type = is.type,
          .rows = is.rows,
          .columns = is.columns,
          .leading = is.leading,
          .stride = is.stride,
          .count = static_cast<std::uint64_t>(is.count)};
}

constexpr std::uint64_t kWorkspaceBytes = 1 << 20;

}  // namespace

STANDIN_EXPORT std::size_t cublasLtGetVersion(void) { return CUBLAS_VERSION; }

STANDIN_EXPORT cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* description, cublasComputeType_t,
                                                       cudaDataType_t) {
  return make<Description>(description);
}
STANDIN_EXPORT cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
// Attributes that say how to compute, not what to touch, are accepted.
STANDIN_EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t description,
                                                             cublasLtMatmulDescAttributes_t attribute,
                                                             const void* buffer, std::size_t bytes) {
  auto& is = inside<Description>(description);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      return take(is.transpose_a, buffer, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
      return take(is.transpose_b, buffer, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      return take(is.epilogue, buffer, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      return take(is.bias, buffer, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
      return take(is.auxiliary, buffer, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
      return take(is.auxiliary_leading, buffer, bytes);
    default:
      return CUBLAS_STATUS_SUCCESS;
  }
}

STANDIN_EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                                         std::uint64_t rows, std::uint64_t columns,
                                                         std::int64_t leading) {
  return make<Layout>(layout, type, rows, columns, leading, 1, std::int64_t{0});
}
STANDIN_EXPORT cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}
STANDIN_EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                               cublasLtMatrixLayoutAttribute_t attribute,
                                                               const void* buffer, std::size_t bytes) {
  auto& is = inside<Layout>(layout);
  switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
      return take(is.count, buffer, bytes);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
      return take(is.stride, buffer, bytes);
    case CUBLASLT_MATRIX_LAYOUT_ORDER:
      return CUBLAS_STATUS_NOT_SUPPORTED;  // columns only
    default:
      return CUBLAS_STATUS_SUCCESS;
  }
}

STANDIN_EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return make<Preference>(preference);
}
STANDIN_EXPORT cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
STANDIN_EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                                   cublasLtMatmulPreferenceAttributes_t attribute,
                                                                   const void* buffer, std::size_t bytes) {
  if (attribute != CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return CUBLAS_STATUS_SUCCESS;
  return take(inside<Preference>(preference).workspace_bytes, buffer, bytes);
}

STANDIN_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                                             cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                             cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                             cublasLtMatmulPreference_t preference, int wanted,
                                                             cublasLtMatmulHeuristicResult_t* results, int* found) {
  if (wanted <= 0 || results == nullptr || found == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  results[0] = {};
  results[0].workspaceSize = std::min(inside<Preference>(preference).workspace_bytes, kWorkspaceBytes);
  results[0].state = CUBLAS_STATUS_SUCCESS;
  results[0].wavesCount = 1;
  *found = 1;
  return CUBLAS_STATUS_SUCCESS;
}

STANDIN_EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t description, const void*,
                                             const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                             cublasLtMatrixLayout_t b_layout, const void*, const void* c,
                                             cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                                             const cublasLtMatmulAlgo_t*, void* workspace, std::size_t workspace_bytes,
                                             cudaStream_t stream) {
  const auto& is = inside<Description>(description);
  const Matrix left = matrix(a, a_layout);
  const Matrix result = matrix(d, d_layout);
  if (result.rows == 0 || result.columns == 0) return CUBLAS_STATUS_SUCCESS;
  const std::uint64_t inner = is.transpose_a == CUBLAS_OP_N ? left.columns : left.rows;
  // Gradients of a bias are written, a bias is read; the auxiliary buffer keeps what GELU or ReLU was given.
  const bool writes_bias = is.epilogue == CUBLASLT_EPILOGUE_DRELU_BGRAD ||
                           is.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD || is.epilogue == CUBLASLT_EPILOGUE_BGRADA ||
                           is.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  const std::uint64_t bias_elements = is.epilogue == CUBLASLT_EPILOGUE_BGRADB ? result.columns : result.rows;
  const Matrix auxiliary{.address = is.auxiliary,
                         .type = result.type,
                         .rows = result.rows,
                         .columns = is.auxiliary == nullptr ? 0 : result.columns,
                         .leading = is.auxiliary_leading};
  const CUresult launched = launch_product(
      stream,
      {reads(left), reads(matrix(b, b_layout)), c == d ? Operand{} : reads(matrix(c, c_layout)), updates(result),
       vector(is.bias, is.bias == nullptr ? 0 : bias_elements * element_bytes(result.type),
              writes_bias ? SIMGPU_WRITE : SIMGPU_READ),
       updates(auxiliary),
       vector(workspace, std::min<std::uint64_t>(workspace_bytes, result.rows * result.columns * 4),
              SIMGPU_READ_WRITE)},
      2 * result.rows * result.columns * inner * result.count, left.type);
  return launched == CUDA_SUCCESS ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}
